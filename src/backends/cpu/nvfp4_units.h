// Where codes and block scales sit in a packed unit: 16 k's of a group, the codes of its four
// vectors of rows, then one byte of scale a row. Shared by the nvfp4_*_cpu.cpp formats.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "backends/cpu/gemm_shared.h"
#include "base/number_formats.h"

namespace nibble::cpu {

// An E4M3 scale (finite, not negative) with five bits of exponent and three of mantissa: shifted to
// bit 20 it is the FP32 number scale * 2^-117, and subnormal scales become normal ones.
inline uint8_t packed_scale(uint8_t e4m3) {
  const uint32_t bits = std::bit_cast<uint32_t>(e4m3_to_float(e4m3 & 0x7Fu));
  return bits == 0 ? static_cast<uint8_t>(0) : static_cast<uint8_t>((bits >> 20) - (117u << 3));
}

// Where (row, k) of a vector's 8-k slice sits: byte and whether in its high nibble.
struct Place {
  int64_t byte;
  bool high;
};

// Four k's of a row in its 32-bit lane, byte by byte.
inline Place place_bytes(int64_t row, int64_t k) { return {row * 4 + k % 4, k >= 4}; }

// Even k's in the low word of a row's lane, odd ones in its high word, a nibble each.
inline Place place_words(int64_t row, int64_t k) {
  return {row * 4 + k % 2 * 2 + k / 4, k / 2 % 2 == 1};
}

// A unit: [2 halves of 8 k][4 vectors][slice], then per lane the scales of the four vectors.
template <int kLanes, Place (*kPlace)(int64_t, int64_t)>
void pack_nvfp4_unit(
    const GemmDesc& desc, const LinearPart& part, int64_t row, int64_t k, uint8_t* unit) {
  constexpr int64_t kRows = 4 * kLanes;
  constexpr int64_t kSlice = kLanes * 4;
  uint8_t* scales = unit + kRows * 8;
  std::fill(unit, scales + kRows, static_cast<uint8_t>(0));
  const int64_t rows = std::min<int64_t>(kRows, part.weight.shape[0] - row);
  for (int64_t r = 0; r < rows; ++r) {
    const uint8_t* codes =
        static_cast<const uint8_t*>(part.weight.data) + (row + r) * (desc.k / 2) + k / 2;
    const auto* part_scales = static_cast<const uint8_t*>(part.weight_scale.data);
    scales[r % kLanes * 4 + r / kLanes] =
        packed_scale(part_scales[(row + r) * (desc.k / 16) + k / 16]);
    for (int64_t i = 0; i < 16; ++i) {
      const auto code = static_cast<uint8_t>(i % 2 == 0 ? codes[i / 2] & 0xF : codes[i / 2] >> 4);
      const Place place = kPlace(r % kLanes, i % 8);
      const int64_t slice = i / 8 * 4 + r / kLanes;
      unit[slice * kSlice + place.byte] |= static_cast<uint8_t>(place.high ? code << 4 : code);
    }
  }
}

}  // namespace nibble::cpu
