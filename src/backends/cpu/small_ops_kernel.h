// The row functions of small_ops.cpp as templates over a vector type (simd_math.h). Included by ISA
// files only. Each sums in one fixed order (32 interleaved partial sums, then a fixed tree), which
// differs from the scalar rows' order but is the same at every width.
#pragma once

#include <cstdint>

#include <immintrin.h>

#include "backends/cpu/isa_abi.h"
#include "backends/cpu/simd_avx2.h"
#include "backends/cpu/simd_math_avx2.h"

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

// What rows need beside the arithmetic: bf16 in and out.
struct Rows8 : Math8 {
  static Vec load_words(const uint16_t* from) { return load_bf16x8(from); }
  static void store_words(uint16_t* to, Vec v) { Avx2::store_bf16(to, v); }
};

// Calls body.operator()<V>(place) over a row in steps of V's lanes, then of eight; what is left
// (fewer than eight) is returned as its place.
template <typename V, typename Body>
int64_t for_lanes(int64_t width, const Body& body) {
  int64_t i = 0;
  for (; i + V::kLanes <= width; i += V::kLanes) {
    body.template operator()<V>(i);
  }
  if constexpr (V::kLanes > 8) {
    for (; i + 8 <= width; i += 8) {
      body.template operator()<Rows8>(i);
    }
  }
  return i;
}

template <typename V>
float sum_of_squares(const uint16_t* x, int64_t width) {
  constexpr int kSums = 32 / V::kLanes;
  typename V::Vec wide[kSums];
#pragma GCC unroll 4
  for (int j = 0; j < kSums; ++j) {
    wide[j] = V::zero();
  }
  int64_t i = 0;
  for (; i + 32 <= width; i += 32) {
#pragma GCC unroll 4
    for (int j = 0; j < kSums; ++j) {
      const typename V::Vec v = V::load_words(x + i + j * V::kLanes);
      wide[j] = V::fma(v, v, wide[j]);
    }
  }
  alignas(64) float partial[32];
#pragma GCC unroll 4
  for (int j = 0; j < kSums; ++j) {
    V::store(partial + j * V::kLanes, wide[j]);
  }
  __m256 first = _mm256_load_ps(partial);
  for (; i + 8 <= width; i += 8) {
    const __m256 v = load_bf16x8(x + i);
    first = _mm256_fmadd_ps(v, v, first);
  }
  if (i < width) {
    const __m256 v = load_tail(x + i, width - i);
    first = _mm256_fmadd_ps(v, v, first);
  }
  return sum8(
      _mm256_add_ps(_mm256_add_ps(first, _mm256_load_ps(partial + 8)),
                    _mm256_add_ps(_mm256_load_ps(partial + 16), _mm256_load_ps(partial + 24))));
}

template <typename V>
void norm_row(const uint16_t* x,
              const uint16_t* weight_bf16,
              const float* weight_f32,
              float eps,
              int64_t width,
              uint16_t* out) {
  const float sum = sum_of_squares<V>(x, width);
  const __m256 mean = _mm256_set1_ps(sum / static_cast<float>(width) + eps);
  const float scale = _mm256_cvtss_f32(_mm256_div_ps(_mm256_set1_ps(1.0f), _mm256_sqrt_ps(mean)));
  const int64_t done = for_lanes<V>(width, [&]<typename L>(int64_t i) {
    const auto weight =
        weight_f32 != nullptr ? L::load(weight_f32 + i) : L::load_words(weight_bf16 + i);
    L::store_words(out + i, L::mul(L::mul(L::load_words(x + i), L::set1(scale)), weight));
  });
  if (done < width) {
    const int64_t left = width - done;
    const __m256 weight = weight_f32 != nullptr ? load_tail_f32(weight_f32 + done, left)
                                                : load_tail(weight_bf16 + done, left);
    const __m256 scaled = _mm256_mul_ps(load_tail(x + done, left), _mm256_set1_ps(scale));
    store_tail(out + done, left, _mm256_mul_ps(scaled, weight));
  }
}

template <typename V>
void add_row(uint16_t* x, const uint16_t* y, int64_t width) {
  const int64_t done = for_lanes<V>(width, [&]<typename L>(int64_t i) {
    L::store_words(x + i, L::add(L::load_words(x + i), L::load_words(y + i)));
  });
  if (done < width) {
    const int64_t left = width - done;
    store_tail(x + done, left, _mm256_add_ps(load_tail(x + done, left), load_tail(y + done, left)));
  }
}

// Products and sums are rounded one by one, as in the scalar rows.
template <typename L>
void rotate(typename L::Vec& low, typename L::Vec& high, typename L::Vec c, typename L::Vec s) {
  const typename L::Vec old_low = low;
  low = L::sub(L::mul(low, c), L::mul(high, s));
  high = L::add(L::mul(high, c), L::mul(old_low, s));
}

template <typename V>
void rotate_row(uint16_t* head, const float* cosine, const float* sine, int64_t half) {
  const int64_t done = for_lanes<V>(half, [&]<typename L>(int64_t i) {
    typename L::Vec low = L::load_words(head + i);
    typename L::Vec high = L::load_words(head + i + half);
    rotate<L>(low, high, L::load(cosine + i), L::load(sine + i));
    L::store_words(head + i, low);
    L::store_words(head + i + half, high);
  });
  if (done < half) {
    const int64_t left = half - done;
    __m256 low = load_tail(head + done, left);
    __m256 high = load_tail(head + done + half, left);
    rotate<Rows8>(low, high, load_tail_f32(cosine + done, left), load_tail_f32(sine + done, left));
    store_tail(head + done, left, low);
    store_tail(head + done + half, left, high);
  }
}

template <typename L>
typename L::Vec silu_mul(typename L::Vec gate, typename L::Vec up) {
  const typename L::Vec decay = exp_of<L>(L::sub(L::zero(), gate));
  return L::mul(L::div(gate, L::add(L::set1(1.0f), decay)), up);
}

template <typename V>
void silu_mul_row(const uint16_t* gate, const uint16_t* up, int64_t width, uint16_t* out) {
  const int64_t done = for_lanes<V>(width, [&]<typename L>(int64_t i) {
    L::store_words(out + i, silu_mul<L>(L::load_words(gate + i), L::load_words(up + i)));
  });
  if (done < width) {
    const int64_t left = width - done;
    store_tail(out + done,
               left,
               silu_mul<Rows8>(load_tail(gate + done, left), load_tail(up + done, left)));
  }
}

template <typename V>
constexpr SmallOpsRows kRowsOf{norm_row<V>, add_row<V>, rotate_row<V>, silu_mul_row<V>};

}  // namespace
}  // namespace nibble::cpu
