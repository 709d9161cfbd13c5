// nvfp4_w4a16_avx2: NVFP4 weights, exact integer products with activations on a grid, AVX2 + FMA;
// and the grid itself.
#include "backends/cpu/gemm_grid.h"
#include "backends/cpu/gemm_w4a16_grid_kernel.h"
#include "backends/cpu/simd_avx2.h"

namespace nibble::cpu {

namespace {

float power_of_two(int exponent) {
  const uint32_t bits = static_cast<uint32_t>(exponent + 127) << 23;
  float value = 0.0f;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// 16 activations as multiples of 2^e, k ascending; returns 2^(e + kGridShift).
__m256i to_grid(const uint16_t* x, float* step) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  const __m256i magnitudes = _mm256_and_si256(words, _mm256_set1_epi16(0x7FFF));
  const __m128i larger =
      _mm_max_epu16(_mm256_castsi256_si128(magnitudes), _mm256_extracti128_si256(magnitudes, 1));
  // The instruction finds the smallest word.
  const __m128i found = _mm_minpos_epu16(_mm_xor_si128(larger, _mm_set1_epi16(-1)));
  const uint32_t largest = ~static_cast<uint32_t>(_mm_cvtsi128_si32(found)) & 0xFFFFu;
  int exponent = static_cast<int>((largest + 1) >> 7) - 127 - kGridBits;
  if (exponent > kGridHighest) {
    *step = __builtin_nanf("");
    return _mm256_setzero_si256();
  }
  exponent = exponent < kGridLowest ? kGridLowest : exponent;
  *step = power_of_two(exponent + kGridShift);
  const __m256 factor = _mm256_set1_ps(power_of_two(-exponent));
  __m256i halves[2];
  for (int half = 0; half < 2; ++half) {
    halves[half] = _mm256_cvtps_epi32(_mm256_mul_ps(Avx2::load_bf16(x + half * 8), factor));
  }
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(halves[0], halves[1]), 0xD8);
}

}  // namespace

void nvfp4_w4a16_avx2(const GemmTask* task, int64_t group_begin, int64_t group_end) {
  run_gemm_grid<Avx2>(*task, group_begin, group_end);
}

void nvfp4_grid_pairs_avx2(const uint16_t* x, int64_t blocks, uint32_t* words, float* scales) {
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  for (int64_t b = 0; b < blocks; ++b) {
    const __m256i values = to_grid(x + b * 16, scales + b);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + b * 8),
                        _mm256_shuffle_epi8(values, order));
  }
}

void nvfp4_grid_digits_avx2(
    const uint16_t* x, int64_t blocks, uint32_t* words, float* scales, int32_t* sums) {
  for (int64_t b = 0; b < blocks; ++b) {
    const __m256i values = to_grid(x + b * 16, scales + b);
    const __m256i high = _mm256_srai_epi16(_mm256_add_epi16(values, _mm256_set1_epi16(128)), 8);
    const __m256i low = _mm256_sub_epi16(values, _mm256_slli_epi16(high, 8));
    // [high k 0..7, low 0..7 | high 8..15, low 8..15], then a word of each in turn.
    const __m256i bytes = _mm256_packs_epi16(high, low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + b * 8),
                        _mm256_shuffle_epi32(bytes, 0xD8));
    const __m256i pairs = _mm256_madd_epi16(values, _mm256_set1_epi16(1));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1));
    sums[b] = -12 * _mm_cvtsi128_si32(sum);
  }
}

}  // namespace nibble::cpu
