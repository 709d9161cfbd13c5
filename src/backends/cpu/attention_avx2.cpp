// attention_avx2: attention_kernel.h with AVX2 + FMA.
#include <cstdint>

#include <immintrin.h>

#include "backends/cpu/attention_kernel.h"

namespace nibble::cpu {

namespace {

struct Attention8 : Math8 {
  static constexpr int kRowStep = 8;
  static int row_begin(int position, int width) { return position * width; }

  template <typename T>
  static Vec widen(const T* from) {
    return load8(from);
  }
  template <typename Row>
  static Vec sum_products(const float* q, int width, const Row& row) {
    Vec sum[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      sum[j] = zero();
    }
    for (int i = 0; i < width; i += 8) {
      const Vec qv = _mm256_load_ps(q + i);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        sum[j] = fma(qv, row(j, i), sum[j]);
      }
    }
    return sum8x8(sum);
  }
  static Vec scores(const float* q, const float* tile, int width) {
    return sum_products(
        q, width, [&](int j, int i) { return _mm256_load_ps(tile + j * width + i); });
  }
  template <typename T>
  static Vec scores_of_rows(const float* q, const T* const* rows, int width) {
    return sum_products(q, width, [&](int j, int i) { return load8(rows[j] + i); });
  }
  static Vec hide(Vec scores, int count) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i seen = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
    return _mm256_blendv_ps(set1(-__builtin_inff()), scores, _mm256_castsi256_ps(seen));
  }
  static float top(Vec v) { return max8(v); }
};

}  // namespace

void attention_avx2(const AttentionTask* task) { attend<Attention8>(*task); }

}  // namespace nibble::cpu
