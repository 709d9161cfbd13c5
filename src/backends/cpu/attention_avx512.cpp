// attention_avx512: attention_kernel.h with AVX-512, in the bits of attention_avx2.
#include <cstdint>

#include <immintrin.h>

#include "backends/cpu/attention_kernel.h"
#include "backends/cpu/simd_math_avx512.h"

namespace nibble::cpu {

namespace {

struct Attention16 : Math16 {
  // Eight channels of position j, then those of position j + 8.
  static constexpr int kRowStep = 16;
  static int row_begin(int position, int width) {
    const int of_block = position % 16;
    return position / 16 * 16 * width + of_block % 8 * 2 * width + of_block / 8 * 8;
  }

  static Vec widen(const uint16_t* from) { return load_bf16x16(from); }
  static Vec widen(const uint8_t* from) { return join(load8(from), load8(from + 8)); }
  static Vec spread(const float* from) { return _mm512_broadcast_f32x8(_mm256_load_ps(from)); }
  static Vec sum_rows(const Vec* sums) { return sum16x8(sums); }
  template <int kQueries>
  static void scores(const float* q, const float* tile, int width, Vec* products) {
    sum_products<Attention16, kQueries, 8>(
        q, width, [&](int j, int i) { return load(tile + j * 2 * width + i * 2); }, products);
  }
  template <int kQueries, typename T>
  static void products_of_rows(const float* q, const T* const* rows, int width, Vec* products) {
    sum_products<Attention16, kQueries, 8>(
        q,
        width,
        [&](int j, int i) { return join(load8(rows[j] + i), load8(rows[j + 8] + i)); },
        products);
  }
  static Vec hide(Vec scores, int count) {
    const uint32_t seen = count >= kLanes ? 0xFFFFu : (1u << count) - 1;
    return _mm512_mask_mov_ps(set1(-__builtin_inff()), static_cast<__mmask16>(seen), scores);
  }
  static float top(Vec v) {
    return max8(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
  }
};

}  // namespace

void attention_avx512(const AttentionTask* task) { attend<Attention16>(*task); }

}  // namespace nibble::cpu
