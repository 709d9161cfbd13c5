// small_ops_avx2: the row functions of small_ops.cpp in AVX2 + FMA, and the weighted sum of
// experts.
#include <cstdint>

#include <immintrin.h>

#include "backends/cpu/isa_abi.h"
#include "backends/cpu/small_ops_kernel.h"
#include "backends/cpu/weighted_sum.h"

namespace nibble::cpu {

void weighted_sum_avx2(const float* weights,
                       const int32_t* places,
                       int64_t count,
                       const float* rows,
                       int64_t stride,
                       int64_t begin,
                       int64_t end,
                       uint16_t* out) {
  int64_t i = begin;
  for (; i + 32 <= end; i += 32) {
    __m256 sum[4] = {
        _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t j = 0; j < count; ++j) {
      const float* from = rows + places[j] * stride + i;
      const __m256 weight = _mm256_broadcast_ss(weights + j);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        sum[v] = _mm256_add_ps(sum[v], _mm256_mul_ps(weight, _mm256_loadu_ps(from + v * 8)));
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      Avx2::store_bf16(out + i + v * 8, sum[v]);
    }
  }
  for (; i < end; i += 8) {
    const int64_t left = end - i < 8 ? end - i : 8;
    __m256 sum = _mm256_setzero_ps();
    for (int64_t j = 0; j < count; ++j) {
      const float* from = rows + places[j] * stride + i;
      const __m256 value = left == 8 ? _mm256_loadu_ps(from) : load_tail_f32(from, left);
      sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_broadcast_ss(weights + j), value));
    }
    store_tail(out + i, left, sum);
  }
}

const SmallOpsRows* small_ops_avx2() { return &kRowsOf<Rows8>; }

}  // namespace nibble::cpu
