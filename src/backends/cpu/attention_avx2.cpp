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
  static Vec spread(const float* from) { return _mm256_load_ps(from); }
  static Vec sum_rows(const Vec* sums) { return sum8x8(sums); }
  template <int kQueries>
  static void scores(const float* q, const float* tile, int width, Vec* products) {
    sum_products<Attention8, kQueries, kQueries == 1 ? 8 : 4>(
        q, width, [&](int j, int i) { return _mm256_load_ps(tile + j * width + i); }, products);
  }
  template <int kQueries, typename T>
  static void products_of_rows(const float* q, const T* const* rows, int width, Vec* products) {
    sum_products<Attention8, kQueries, 4>(
        q, width, [&](int j, int i) { return load8(rows[j] + i); }, products);
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
