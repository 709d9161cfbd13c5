#pragma once
// One packed word to four bf16x2 fragments, see nvfp4_layout.h: 9 bit operations and 4 multiplies,
// and 1 or 2 operations for the scales: 14 or 15 instructions for 8 weights, of which 6 to 8 use
// the ALU pipe (shifts left may run as IMAD).

#include <cstdint>

#include "backends/cuda/device/ptx.cuh"

namespace nibble::cuda {

inline constexpr uint32_t kCodeMask = 0x81C081C0u;

/// 2^112 * 2^7 of the expanded scales' exponents, kept in a register: LOP3 takes one immediate
/// only.
__device__ __forceinline__ uint32_t scale_bias() {
  uint32_t bias;
  asm volatile("mov.b32 %0, 0x70007000;" : "=r"(bias));
  return bias;
}

/// The scales of an even (kOdd = 0) or odd K16 step of `word` (place_scales) to a bf16x2: scale *
/// 2^119 of instruction rows r (low half) and r + 8 (high half).
template <int kOdd>
__device__ __forceinline__ uint32_t expand_scales(uint32_t word, uint32_t bias) {
  const uint32_t placed = kOdd ? __byte_perm(word, 0, 0x2301) : word;
  uint32_t scales;
  asm("lop3.b32 %0, %1, 0x0FF00FF0, %2, 0xEA;" : "=r"(scales) : "r"(placed), "r"(bias));
  return scales;
}

/// codes * the low (high) half of pair, in both halves; the broadcast is an operand modifier of
/// HMUL2. Before sm_90 there is no bf16 multiplication: a * b + -0 has the same bits.
__device__ __forceinline__ uint32_t multiply_by_low(uint32_t codes, uint32_t pair) {
  uint32_t product;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  asm("{\n .reg .b16 l, h;\n .reg .b32 both;\n mov.b32 {l, h}, %2;\n mov.b32 both, {l, l};\n"
      " fma.rn.bf16x2 %0, %1, both, %3;\n}"
      : "=r"(product)
      : "r"(codes), "r"(pair), "r"(0x80008000u));
#else
  asm("{\n .reg .b16 l, h;\n .reg .b32 both;\n mov.b32 {l, h}, %2;\n mov.b32 both, {l, l};\n"
      " mul.rn.bf16x2 %0, %1, both;\n}"
      : "=r"(product)
      : "r"(codes), "r"(pair));
#endif
  return product;
}

__device__ __forceinline__ uint32_t multiply_by_high(uint32_t codes, uint32_t pair) {
  uint32_t product;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  asm("{\n .reg .b16 l, h;\n .reg .b32 both;\n mov.b32 {l, h}, %2;\n mov.b32 both, {h, h};\n"
      " fma.rn.bf16x2 %0, %1, both, %3;\n}"
      : "=r"(product)
      : "r"(codes), "r"(pair), "r"(0x80008000u));
#else
  asm("{\n .reg .b16 l, h;\n .reg .b32 both;\n mov.b32 {l, h}, %2;\n mov.b32 both, {h, h};\n"
      " mul.rn.bf16x2 %0, %1, both;\n}"
      : "=r"(product)
      : "r"(codes), "r"(pair));
#endif
  return product;
}

/// fragment = the word's eight weights times their scales, as A registers of a K16 step.
__device__ __forceinline__ void decode_word(uint32_t word,
                                            uint32_t scales,
                                            uint32_t (&fragment)[4]) {
  fragment[0] = multiply_by_low(word & kCodeMask, scales);
  fragment[1] = multiply_by_high((word << 3) & kCodeMask, scales);
  fragment[2] = multiply_by_low((word << 6) & kCodeMask, scales);
  fragment[3] = multiply_by_high((((word >> 8) & 0x006C006Cu) * 0x1042u) & kCodeMask, scales);
}

/// A lane's part of a record: four words and the scales of its two rows for four K16 steps.
struct PackedLane {
  uint4 words;
  uint2 scales;
};

/// The A fragments of the first (last) two K16 steps of a K64 block.
__device__ __forceinline__ void decode_first_half(const PackedLane& packed,
                                                  uint32_t bias,
                                                  uint32_t (*fragments)[4]) {
  decode_word(packed.words.x, expand_scales<0>(packed.scales.x, bias), fragments[0]);
  decode_word(packed.words.y, expand_scales<1>(packed.scales.x, bias), fragments[1]);
}
__device__ __forceinline__ void decode_last_half(const PackedLane& packed,
                                                 uint32_t bias,
                                                 uint32_t (*fragments)[4]) {
  decode_word(packed.words.z, expand_scales<0>(packed.scales.y, bias), fragments[0]);
  decode_word(packed.words.w, expand_scales<1>(packed.scales.y, bias), fragments[1]);
}

/// The A fragments of a K64 block.
__device__ __forceinline__ void decode_lane(const PackedLane& packed,
                                            uint32_t bias,
                                            uint32_t (&fragments)[4][4]) {
  decode_first_half(packed, bias, fragments);
  decode_last_half(packed, bias, fragments + 2);
}

}  // namespace nibble::cuda
