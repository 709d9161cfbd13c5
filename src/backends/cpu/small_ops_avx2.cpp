// small_ops_avx2: the row functions of small_ops.cpp in AVX2 + FMA. Each sums in one fixed order
// (32 interleaved partial sums, then a fixed tree), which differs from the scalar rows' order.
#include <cstdint>

#include <immintrin.h>

#include "backends/cpu/isa_abi.h"
#include "backends/cpu/simd_avx2.h"
#include "backends/cpu/simd_math_avx2.h"
#include "backends/cpu/weighted_sum.h"

namespace nibble::cpu {

namespace {

// Up to seven words at the end of a row, zero-padded.
__m256 load_tail(const uint16_t* from, int64_t count) {
  alignas(16) uint16_t words[8] = {};
  for (int64_t i = 0; i < count; ++i) {
    words[i] = from[i];
  }
  return load_bf16x8(words);
}

void store_tail(uint16_t* to, int64_t count, __m256 v) {
  alignas(16) uint16_t words[8];
  Avx2::store_bf16(words, v);
  for (int64_t i = 0; i < count; ++i) {
    to[i] = words[i];
  }
}

__m256 load_tail_f32(const float* from, int64_t count) {
  alignas(32) float values[8] = {};
  for (int64_t i = 0; i < count; ++i) {
    values[i] = from[i];
  }
  return _mm256_load_ps(values);
}

void norm_row(const uint16_t* x,
              const uint16_t* weight_bf16,
              const float* weight_f32,
              float eps,
              int64_t width,
              uint16_t* out) {
  __m256 sums[4] = {
      _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
  int64_t i = 0;
  for (; i + 32 <= width; i += 32) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m256 v = load_bf16x8(x + i + j * 8);
      sums[j] = _mm256_fmadd_ps(v, v, sums[j]);
    }
  }
  for (; i + 8 <= width; i += 8) {
    const __m256 v = load_bf16x8(x + i);
    sums[0] = _mm256_fmadd_ps(v, v, sums[0]);
  }
  if (i < width) {
    const __m256 v = load_tail(x + i, width - i);
    sums[0] = _mm256_fmadd_ps(v, v, sums[0]);
  }
  const float sum =
      sum8(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
  const __m256 mean = _mm256_set1_ps(sum / static_cast<float>(width) + eps);
  const __m256 scale = _mm256_div_ps(_mm256_set1_ps(1.0f), _mm256_sqrt_ps(mean));
  for (i = 0; i + 8 <= width; i += 8) {
    const __m256 weight =
        weight_f32 != nullptr ? _mm256_loadu_ps(weight_f32 + i) : load_bf16x8(weight_bf16 + i);
    Avx2::store_bf16(out + i, _mm256_mul_ps(_mm256_mul_ps(load_bf16x8(x + i), scale), weight));
  }
  if (i < width) {
    const int64_t left = width - i;
    const __m256 weight = weight_f32 != nullptr ? load_tail_f32(weight_f32 + i, left)
                                                : load_tail(weight_bf16 + i, left);
    store_tail(out + i, left, _mm256_mul_ps(_mm256_mul_ps(load_tail(x + i, left), scale), weight));
  }
}

void add_row(uint16_t* x, const uint16_t* y, int64_t width) {
  int64_t i = 0;
  for (; i + 8 <= width; i += 8) {
    Avx2::store_bf16(x + i, _mm256_add_ps(load_bf16x8(x + i), load_bf16x8(y + i)));
  }
  if (i < width) {
    const int64_t left = width - i;
    store_tail(x + i, left, _mm256_add_ps(load_tail(x + i, left), load_tail(y + i, left)));
  }
}

// Products and sums are rounded one by one, as in the scalar rows.
void rotate_row(uint16_t* head, const float* cosine, const float* sine, int64_t half) {
  for (int64_t i = 0; i < half; i += 8) {
    const int64_t left = half - i;
    const bool whole = left >= 8;
    const __m256 low = whole ? load_bf16x8(head + i) : load_tail(head + i, left);
    const __m256 high = whole ? load_bf16x8(head + i + half) : load_tail(head + i + half, left);
    const __m256 c = whole ? _mm256_loadu_ps(cosine + i) : load_tail_f32(cosine + i, left);
    const __m256 s = whole ? _mm256_loadu_ps(sine + i) : load_tail_f32(sine + i, left);
    const __m256 new_low = _mm256_sub_ps(_mm256_mul_ps(low, c), _mm256_mul_ps(high, s));
    const __m256 new_high = _mm256_add_ps(_mm256_mul_ps(high, c), _mm256_mul_ps(low, s));
    if (whole) {
      Avx2::store_bf16(head + i, new_low);
      Avx2::store_bf16(head + i + half, new_high);
    } else {
      store_tail(head + i, left, new_low);
      store_tail(head + i + half, left, new_high);
    }
  }
}

__m256 silu_mul8(__m256 gate, __m256 up) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 decay = exp8(_mm256_sub_ps(_mm256_setzero_ps(), gate));
  return _mm256_mul_ps(_mm256_div_ps(gate, _mm256_add_ps(one, decay)), up);
}

void silu_mul_row(const uint16_t* gate, const uint16_t* up, int64_t width, uint16_t* out) {
  int64_t i = 0;
  for (; i + 8 <= width; i += 8) {
    Avx2::store_bf16(out + i, silu_mul8(load_bf16x8(gate + i), load_bf16x8(up + i)));
  }
  if (i < width) {
    const int64_t left = width - i;
    store_tail(out + i, left, silu_mul8(load_tail(gate + i, left), load_tail(up + i, left)));
  }
}

constexpr SmallOpsRows kRows{norm_row, add_row, rotate_row, silu_mul_row};

}  // namespace

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

const SmallOpsRows* small_ops_avx2() { return &kRows; }

}  // namespace nibble::cpu
