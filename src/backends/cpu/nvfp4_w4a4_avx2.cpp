// nvfp4_w4a4_avx2: NVFP4 weights and activations, exact integer dot products, AVX2.
#include "backends/cpu/gemm_w4a4_kernel.h"
#include "backends/cpu/simd_avx2.h"

namespace nibble::cpu {

void nvfp4_w4a4_avx2(const GemmTask* task, int64_t group_begin, int64_t group_end) {
  run_gemm_w4a4<Avx2>(*task, group_begin, group_end);
}

void nvfp4_amax_avx2(
    const uint16_t* x, const float* pre_quant_scale, int64_t blocks, float* out, float* amax) {
  const __m256 sign_bit = _mm256_set1_ps(-0.0f);
  for (int64_t b = 0; b < blocks; ++b) {
    __m256 halves[2];
    for (int half = 0; half < 2; ++half) {
      const int64_t at = b * 16 + half * 8;
      __m256 value = Avx2::load_bf16(x + at);
      if (pre_quant_scale != nullptr) {
        uint16_t rounded[8];
        Avx2::store_bf16(rounded, _mm256_mul_ps(value, _mm256_loadu_ps(pre_quant_scale + at)));
        value = Avx2::load_bf16(rounded);
      }
      if (out != nullptr) {
        _mm256_storeu_ps(out + at, value);
      }
      halves[half] = _mm256_andnot_ps(sign_bit, value);
    }
    const __m256 both = _mm256_max_ps(halves[0], halves[1]);
    __m128 top = _mm_max_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
    top = _mm_max_ps(top, _mm_movehl_ps(top, top));
    top = _mm_max_ss(top, _mm_shuffle_ps(top, top, 1));
    amax[b] = _mm_cvtss_f32(top);
  }
}

// The thresholds of float_to_e2m1(): ties go to the even code. The step above a threshold is added
// where it is passed: 0 1 2 3 4 6 8 12.
void nvfp4_codes_avx2(
    const float* x, const float* divisors, int64_t blocks, int8_t* codes, int32_t* sums) {
  const __m256 sign_bit = _mm256_set1_ps(-0.0f);
  for (int64_t b = 0; b < blocks; ++b) {
    const __m256 divisor = _mm256_set1_ps(divisors[b]);
    __m256i halves[2];
    for (int half = 0; half < 2; ++half) {
      const __m256 value = _mm256_div_ps(_mm256_loadu_ps(x + b * 16 + half * 8), divisor);
      const __m256 magnitude = _mm256_andnot_ps(sign_bit, value);
      __m256i code = _mm256_setzero_si256();
      const auto above = [&](__m256 passed, int step) {
        code = _mm256_add_epi32(
            code, _mm256_and_si256(_mm256_castps_si256(passed), _mm256_set1_epi32(step)));
      };
      above(_mm256_cmp_ps(magnitude, _mm256_set1_ps(0.25f), _CMP_GT_OQ), 1);
      above(_mm256_cmp_ps(magnitude, _mm256_set1_ps(0.75f), _CMP_GE_OQ), 1);
      above(_mm256_cmp_ps(magnitude, _mm256_set1_ps(1.25f), _CMP_GT_OQ), 1);
      above(_mm256_cmp_ps(magnitude, _mm256_set1_ps(1.75f), _CMP_GE_OQ), 1);
      above(_mm256_cmp_ps(magnitude, _mm256_set1_ps(2.5f), _CMP_GT_OQ), 2);
      above(_mm256_cmp_ps(magnitude, _mm256_set1_ps(3.5f), _CMP_GE_OQ), 2);
      above(_mm256_cmp_ps(magnitude, _mm256_set1_ps(5.0f), _CMP_GT_OQ), 4);
      const __m256i negative = _mm256_srai_epi32(_mm256_castps_si256(value), 31);
      code = _mm256_sub_epi32(_mm256_xor_si256(code, negative), negative);
      const __m256i valid =
          _mm256_castps_si256(_mm256_cmp_ps(divisor, _mm256_setzero_ps(), _CMP_GT_OQ));
      halves[half] = _mm256_and_si256(code, valid);
    }
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(halves[0], halves[1]), 0xD8);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + b * 16), bytes);
    // Unsigned bytes for the instruction that adds eight of them: 128 too much each.
    const __m128i eights =
        _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
    sums[b] = _mm_cvtsi128_si32(eights) + _mm_extract_epi16(eights, 4) - 16 * 128;
  }
}

}  // namespace nibble::cpu
