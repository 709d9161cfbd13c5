// The number formats nibble computes with, as bit patterns: bf16, f16, e4m3, e8m0, e2m1.
// constexpr and device-visible: nothing here but integer arithmetic and std::bit_cast.
//
// Sources: OCP Microscaling Formats v1.0 (E2M1, E4M3, E8M0), IEEE 754 (binary16), and bfloat16 as
// the upper half of binary32. Encoders round to nearest, ties to even, and saturate where the
// format has no infinity (E2M1, E4M3), as NVIDIA's cvt.rn.satfinite does.
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define NIBBLE_HD __host__ __device__
#else
#define NIBBLE_HD
#endif

namespace nibble {

// ---- bfloat16 ----

NIBBLE_HD constexpr float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// NaN stays a quiet NaN with its sign; overflow rounds to infinity as IEEE does.
NIBBLE_HD constexpr uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  }
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// ---- binary16 ----

NIBBLE_HD constexpr float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 0x1Fu) {
    return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  }
  if (exponent == 0) {
    if (mantissa == 0) {
      return std::bit_cast<float>(sign);
    }
    uint32_t shift = 0;
    while ((mantissa & 0x400u) == 0) {
      mantissa <<= 1;
      ++shift;
    }
    mantissa &= 0x3FFu;
    return std::bit_cast<float>(sign | ((113u - shift) << 23) | (mantissa << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

NIBBLE_HD constexpr uint16_t float_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  }
  if (magnitude >= 0x477FF000u) {  // 65520 and above round to infinity
    return static_cast<uint16_t>(sign | 0x7C00u);
  }
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal, in units of 2^-24
    const uint32_t exponent = magnitude >> 23;
    if (exponent < 102u) {  // below 2^-25: rounds to zero
      return sign;
    }
    const uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
    const uint32_t shift = 126u - exponent;
    const uint32_t kept = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1u);
    const uint32_t half = 1u << (shift - 1u);
    const uint32_t up = (rest > half || (rest == half && (kept & 1u) != 0)) ? 1u : 0u;
    return static_cast<uint16_t>(sign | (kept + up));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// ---- E4M3 (FN): bias 7, no infinity, 0x7F and 0xFF are NaN, largest 448 ----

inline constexpr float kE4m3Max = 448.0f;

NIBBLE_HD constexpr float e4m3_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t exponent = (code >> 3) & 0xFu;
  const uint32_t mantissa = code & 7u;
  if ((code & 0x7Fu) == 0x7Fu) {
    return std::bit_cast<float>(sign | 0x7FC00000u);
  }
  if (exponent == 0) {  // subnormal: mantissa * 2^-9
    const float magnitude = static_cast<float>(mantissa) * 0.001953125f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

// Saturates to +-448 (infinities too); NaN becomes 0x7F or 0xFF.
NIBBLE_HD constexpr uint8_t float_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return static_cast<uint8_t>(sign | 0x7Fu);
  }
  if (magnitude >= 0x43E00000u) {  // 448 and above
    return static_cast<uint8_t>(sign | 0x7Eu);
  }
  if (magnitude < 0x3C800000u) {  // below 2^-6: subnormal, in units of 2^-9
    const uint32_t exponent = magnitude >> 23;
    if (exponent < 117u) {  // below 2^-10: rounds to zero
      return sign;
    }
    const uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
    const uint32_t shift = 141u - exponent;
    const uint32_t kept = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1u);
    const uint32_t half = 1u << (shift - 1u);
    const uint32_t up = (rest > half || (rest == half && (kept & 1u) != 0)) ? 1u : 0u;
    return static_cast<uint8_t>(sign | (kept + up));
  }
  const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
  const uint32_t code = (rounded - 0x3C000000u) >> 20;
  return static_cast<uint8_t>(sign | (code > 0x7Eu ? 0x7Eu : code));
}

// ---- E8M0: 2^(code - 127), 0xFF is NaN ----

NIBBLE_HD constexpr float e8m0_to_float(uint8_t code) {
  if (code == 0xFFu) {
    return std::bit_cast<float>(0x7FC00000u);
  }
  if (code == 0) {
    return std::bit_cast<float>(0x00400000u);  // 2^-127 is a binary32 subnormal
  }
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

// ---- E2M1: sign, 2 exponent bits, 1 mantissa bit: 0 0.5 1 1.5 2 3 4 6 ----

inline constexpr float kE2m1Max = 6.0f;

NIBBLE_HD constexpr float e2m1_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 8u) << 28;
  const uint32_t exponent = (code >> 1) & 3u;
  const uint32_t mantissa = code & 1u;
  if (exponent == 0) {
    return std::bit_cast<float>(sign | (mantissa != 0 ? 0x3F000000u : 0u));
  }
  return std::bit_cast<float>(sign | ((exponent + 126u) << 23) | (mantissa << 22));
}

// Round to nearest, ties to the even code, saturating; -0 keeps its sign; NaN becomes +6 as
// cvt.rn.satfinite.e2m1x2.f32 makes it.
NIBBLE_HD constexpr uint8_t float_to_e2m1(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return 7;
  }
  const auto sign = static_cast<uint8_t>((bits >> 28) & 8u);
  const float magnitude = std::bit_cast<float>(bits & 0x7FFFFFFFu);
  uint8_t code = 0;
  // Midpoints of neighbouring values; at an exact midpoint the even code wins.
  code = static_cast<uint8_t>((magnitude > 0.25f ? 1 : 0) + (magnitude >= 0.75f ? 1 : 0) +
                              (magnitude > 1.25f ? 1 : 0) + (magnitude >= 1.75f ? 1 : 0) +
                              (magnitude > 2.5f ? 1 : 0) + (magnitude >= 3.5f ? 1 : 0) +
                              (magnitude > 5.0f ? 1 : 0));
  return static_cast<uint8_t>(sign | code);
}

}  // namespace nibble
