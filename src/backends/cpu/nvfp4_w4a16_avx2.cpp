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

float sum_of(__m256 v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

// Whether a block of values [2] (in steps) loses too much by rounding errors [2].
bool loses_much(const __m256* values, const __m256* errors) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  const __m256 limit = _mm256_set1_ps(1 << kSmallBits);
  __m256 small = _mm256_setzero_ps();
  __m256 error = _mm256_setzero_ps();
  for (int half = 0; half < 2; ++half) {
    const __m256 is_small =
        _mm256_cmp_ps(_mm256_and_ps(values[half], magnitude), limit, _CMP_LT_OQ);
    const __m256 kept = _mm256_and_ps(values[half], is_small);
    small = _mm256_fmadd_ps(kept, kept, small);
    error = _mm256_fmadd_ps(errors[half], errors[half], error);
  }
  const float lost = sum_of(error);
  const float size = sum_of(small);
  return lost > kRestThreshold * size && (lost > kRestLeast || lost > kRestShare * size);
}

struct GridBlock {
  __m256i values;  // int16, k ascending
  bool has_rest;
};

// 16 activations as multiples of 2^e; *step becomes 2^(e + kGridShift).
GridBlock to_grid(const uint16_t* x, float* step, uint16_t* rest) {
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
    return {_mm256_setzero_si256(), false};
  }
  exponent = exponent < kGridLowest ? kGridLowest : exponent;
  *step = power_of_two(exponent + kGridShift);
  const __m256 factor = _mm256_set1_ps(power_of_two(-exponent));
  __m256i integers[2];
  __m256 values[2];
  __m256 errors[2];
  for (int half = 0; half < 2; ++half) {
    values[half] = _mm256_mul_ps(Avx2::load_bf16(x + half * 8), factor);
    integers[half] = _mm256_cvtps_epi32(values[half]);
    errors[half] = _mm256_sub_ps(values[half], _mm256_cvtepi32_ps(integers[half]));
  }
  const __m256i any = _mm256_castps_si256(_mm256_or_ps(errors[0], errors[1]));
  GridBlock block{_mm256_permute4x64_epi64(_mm256_packs_epi32(integers[0], integers[1]), 0xD8),
                  false};
  if (_mm256_testz_si256(any, any) == 0 && exponent > kGridLowest && loses_much(values, errors)) {
    block.has_rest = true;
    const __m256 back = _mm256_set1_ps(power_of_two(exponent));
    for (int half = 0; half < 2; ++half) {
      Avx2::store_bf16(rest + half * 8, _mm256_mul_ps(errors[half], back));
    }
  }
  return block;
}

}  // namespace

void nvfp4_w4a16_avx2(const GemmTask* task, int64_t group_begin, int64_t group_end) {
  run_gemm_grid<Avx2>(*task, group_begin, group_end);
}

uint32_t nvfp4_grid_pairs_avx2(const uint16_t* x,
                               int64_t blocks,
                               uint32_t* records,
                               uint16_t* rest) {
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  uint32_t rests = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    float step = 0.0f;
    const GridBlock block = to_grid(x + b * 16, &step, rest + b * 16);
    rests |= static_cast<uint32_t>(block.has_rest) << b;
    uint32_t* record = records + b * kGridRecord;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(record),
                        _mm256_shuffle_epi8(block.values, order));
    __builtin_memcpy(record + kGridRecord - 1, &step, sizeof step);
  }
  return rests;
}

uint32_t nvfp4_grid_digits_avx2(const uint16_t* x,
                                int64_t blocks,
                                uint32_t* words,
                                float* scales,
                                int32_t* sums,
                                uint16_t* rest) {
  uint32_t rests = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    const GridBlock block = to_grid(x + b * 16, scales + b, rest + b * 16);
    rests |= static_cast<uint32_t>(block.has_rest) << b;
    const __m256i values = block.values;
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
  return rests;
}

}  // namespace nibble::cpu
