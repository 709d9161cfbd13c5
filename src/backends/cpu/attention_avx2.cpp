// attention_avx2: causal attention of up to kMaxQueries queries over one KV head, AVX2 + FMA.
//
// Plan: KV is walked in tiles of kTile positions whose borders are multiples of kTile from position
// 0, whatever the chunk. A tile of K, then of V, is widened to FP32 once and used by all queries
// (rows of a prefill chunk, heads of a GQA group). Per query: scores, online softmax per tile, then
// p * V in ascending position. Prefill, chunks and decode run this same code, and a query touches
// its own state only, so its bits depend on its position and KV alone. Lanes are channels for both
// products; the score's horizontal sum is one fixed tree.
#include <cstdint>
#include <cstring>

#include <immintrin.h>

#include "backends/cpu/isa_abi.h"
#include "backends/cpu/simd_avx2.h"
#include "backends/cpu/simd_math_avx2.h"

namespace nibble::cpu {

namespace {

constexpr int kTile = 32;

struct Scratch {
  alignas(64) float q[kMaxQueries * kMaxHeadDim];
  alignas(64) float acc[kMaxQueries * kMaxHeadDim];
  alignas(64) float tile[kTile * kMaxHeadDim];
  alignas(64) float weights[kMaxQueries * kTile];
  float top[kMaxQueries];
  float sum[kMaxQueries];
  int count[kMaxQueries];  // visible positions of the tile
};

// Eight e4m3. The bits of a magnitude are those of an FP32 2^120 times smaller (subnormal ones
// too), but for NaN.
__m256 load8(const uint8_t* from) {
  const __m256i codes =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi32(0x7F));
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(0x80)), 24);
  const __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)),
                                     _mm256_set1_ps(0x1p120f));
  const __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7F));
  return _mm256_or_ps(_mm256_or_ps(value, _mm256_castsi256_ps(sign)), _mm256_castsi256_ps(nan));
}

__m256 load8(const uint16_t* from) { return load_bf16x8(from); }

// One row of head_dim bf16 or e4m3 channels to FP32, zero-padded to `width`.
template <typename T>
void widen(const T* from, int64_t head_dim, int width, float* to) {
  int i = 0;
  for (; i + 8 <= head_dim; i += 8) {
    _mm256_store_ps(to + i, load8(from + i));
  }
  if (i < width) {
    alignas(32) T tail[8] = {};
    for (int j = 0; i + j < head_dim; ++j) {
      tail[j] = from[i + j];
    }
    _mm256_store_ps(to + i, load8(tail));
  }
}

template <typename T>
void load_tile(const AttentionTask& task,
               const T* cache,
               int64_t page_stride,
               int64_t slot_stride,
               int64_t base,
               int count,
               int width,
               float* tile) {
  int64_t page = base / task.page_size;
  int64_t slot = base % task.page_size;
  for (int j = 0; j < count; ++j) {
    const T* row = cache + task.pages[page] * page_stride + slot * slot_stride;
    widen(row, task.head_dim, width, tile + j * width);
    if (++slot == task.page_size) {
      slot = 0;
      ++page;
    }
  }
}

// The rows of a tile to L2. Rows of one head are some hundred bytes apart, which the hardware's
// prefetchers do not follow: 3 of 4 cycles of a decode step's attention were waits for them.
void prefetch_tile(const AttentionTask& task,
                   const void* cache,
                   int64_t page_stride,
                   int64_t slot_stride,
                   int64_t base,
                   int64_t end) {
  const int64_t element = task.is_e4m3 ? 1 : 2;
  const int64_t bytes = task.head_dim * element;
  int64_t page = base / task.page_size;
  int64_t slot = base % task.page_size;
  const int64_t last = base + kTile < end ? base + kTile : end;
  for (int64_t position = base; position < last; ++position) {
    const char* row = static_cast<const char*>(cache) +
                      (task.pages[page] * page_stride + slot * slot_stride) * element;
    for (int64_t at = 0; at < bytes; at += 64) {
      _mm_prefetch(row + at, _MM_HINT_T1);
    }
    if (++slot == task.page_size) {
      slot = 0;
      ++page;
    }
  }
}

void load_tile(const AttentionTask& task,
               const void* cache,
               int64_t page_stride,
               int64_t slot_stride,
               int64_t base,
               int count,
               int width,
               float* tile) {
  if (task.is_e4m3) {
    load_tile(task,
              static_cast<const uint8_t*>(cache),
              page_stride,
              slot_stride,
              base,
              count,
              width,
              tile);
  } else {
    load_tile(task,
              static_cast<const uint16_t*>(cache),
              page_stride,
              slot_stride,
              base,
              count,
              width,
              tile);
  }
}

// Scores of eight tile rows: lanes are positions.
__m256 scores8(const float* q, const float* k, int width) {
  __m256 sum[8];
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    sum[j] = _mm256_setzero_ps();
  }
  for (int i = 0; i < width; i += 8) {
    const __m256 qv = _mm256_load_ps(q + i);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      sum[j] = _mm256_fmadd_ps(qv, _mm256_load_ps(k + j * width + i), sum[j]);
    }
  }
  return sum8x8(sum);
}

// Softmax weights of one query over the tile; rescales what was summed before.
void weigh_tile(Scratch& s, int query, float scale, int width) {
  const int count = s.count[query];
  const float* q = s.q + query * width;
  float* weights = s.weights + query * kTile;
  const __m256 minus_inf = _mm256_set1_ps(-__builtin_inff());
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  __m256 scores[kTile / 8];
  __m256 top = minus_inf;
#pragma GCC unroll 4
  for (int v = 0; v < kTile / 8; ++v) {
    scores[v] = minus_inf;
    if (v * 8 < count) {
      const __m256 score =
          _mm256_mul_ps(scores8(q, s.tile + v * 8 * width, width), _mm256_set1_ps(scale));
      const __m256i seen = _mm256_cmpgt_epi32(_mm256_set1_epi32(count - v * 8), lane);
      scores[v] = _mm256_blendv_ps(minus_inf, score, _mm256_castsi256_ps(seen));
    }
    top = _mm256_max_ps(top, scores[v]);
  }
  const float tile_top = max8(top);
  const float old_top = s.top[query];
  const float new_top = tile_top > old_top ? tile_top : old_top;
  const __m256 shift = _mm256_set1_ps(new_top);
  __m256 sum = _mm256_setzero_ps();
#pragma GCC unroll 4
  for (int v = 0; v < kTile / 8; ++v) {
    const __m256 weight = exp8(_mm256_sub_ps(scores[v], shift));
    _mm256_store_ps(weights + v * 8, weight);
    sum = _mm256_add_ps(sum, weight);
  }
  const __m256 shrink = exp8(_mm256_set1_ps(old_top - new_top));
  s.top[query] = new_top;
  s.sum[query] = s.sum[query] * _mm256_cvtss_f32(shrink) + sum8(sum);
  if (new_top != old_top) {
    float* acc = s.acc + query * width;
    for (int i = 0; i < width; i += 8) {
      _mm256_store_ps(acc + i, _mm256_mul_ps(_mm256_load_ps(acc + i), shrink));
    }
  }
}

// acc[kVectors * 8 channels] += weights * V, positions ascending.
template <int kVecs>
void add_values(const float* weights, const float* v, int count, int width, float* acc) {
  __m256 sum[kVecs];
#pragma GCC unroll 8
  for (int i = 0; i < kVecs; ++i) {
    sum[i] = _mm256_load_ps(acc + i * 8);
  }
  for (int j = 0; j < count; ++j) {
    const __m256 weight = _mm256_broadcast_ss(weights + j);
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i) {
      sum[i] = _mm256_fmadd_ps(weight, _mm256_load_ps(v + j * width + i * 8), sum[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kVecs; ++i) {
    _mm256_store_ps(acc + i * 8, sum[i]);
  }
}

void add_all_values(Scratch& s, int query, int width) {
  const float* weights = s.weights + query * kTile;
  float* acc = s.acc + query * width;
  const int count = s.count[query];
  int i = 0;
  for (; i + 64 <= width; i += 64) {
    add_values<8>(weights, s.tile + i, count, width, acc + i);
  }
  for (; i < width; i += 8) {
    add_values<1>(weights, s.tile + i, count, width, acc + i);
  }
}

void write_out(const AttentionTask& task, const float* acc, float sum, uint16_t* out, int width) {
  alignas(32) uint16_t words[kMaxHeadDim];
  const __m256 divisor = _mm256_set1_ps(sum);
  const __m256 scale = _mm256_set1_ps(task.value_scale);
  for (int i = 0; i < width; i += 8) {
    Avx2::store_bf16(words + i,
                     _mm256_mul_ps(_mm256_div_ps(_mm256_load_ps(acc + i), divisor), scale));
  }
  std::memcpy(out, words, static_cast<size_t>(task.head_dim) * sizeof(words[0]));
}

}  // namespace

void attention_avx2(const AttentionTask* task_pointer) {
  const AttentionTask& task = *task_pointer;
  Scratch s;
  const int width = static_cast<int>((task.head_dim + 7) / 8 * 8);
  const int queries = static_cast<int>(task.end - task.begin);
  for (int i = 0; i < queries; ++i) {
    const int64_t row = (task.begin + i) / task.heads_per_kv;
    const int64_t head = (task.begin + i) % task.heads_per_kv;
    widen(task.q + row * task.q_row_stride + head * task.q_head_stride,
          task.head_dim,
          width,
          s.q + i * width);
    s.top[i] = -__builtin_inff();
    s.sum[i] = 0.0f;
  }
  for (int i = 0; i < queries * width; i += 8) {
    _mm256_store_ps(s.acc + i, _mm256_setzero_ps());
  }
  const int64_t last_row = (task.end - 1) / task.heads_per_kv;
  const int64_t kv_count = task.first_position + last_row + 1;
  const auto prefetch = [&](int64_t base) {
    prefetch_tile(task, task.k_cache, task.k_page_stride, task.k_slot_stride, base, kv_count);
    prefetch_tile(task, task.v_cache, task.v_page_stride, task.v_slot_stride, base, kv_count);
  };
  prefetch(0);
  prefetch(kTile);
  for (int64_t base = 0; base < kv_count; base += kTile) {
    prefetch(base + 2 * kTile);
    const int64_t left = kv_count - base;
    const int rows = left < kTile ? static_cast<int>(left) : kTile;
    load_tile(
        task, task.k_cache, task.k_page_stride, task.k_slot_stride, base, rows, width, s.tile);
    for (int i = rows * width; i < (rows + 7) / 8 * 8 * width; i += 8) {
      _mm256_store_ps(s.tile + i, _mm256_setzero_ps());
    }
    for (int i = 0; i < queries; ++i) {
      const int64_t position = task.first_position + (task.begin + i) / task.heads_per_kv;
      const int64_t seen = position + 1 - base;
      s.count[i] = seen < 0 ? 0 : (seen < kTile ? static_cast<int>(seen) : kTile);
      if (s.count[i] > 0) {
        weigh_tile(s, i, task.scale, width);
      }
    }
    load_tile(
        task, task.v_cache, task.v_page_stride, task.v_slot_stride, base, rows, width, s.tile);
    for (int i = 0; i < queries; ++i) {
      if (s.count[i] > 0) {
        add_all_values(s, i, width);
      }
    }
  }
  for (int i = 0; i < queries; ++i) {
    const int64_t row = (task.begin + i) / task.heads_per_kv;
    const int64_t head = (task.begin + i) % task.heads_per_kv;
    write_out(task,
              s.acc + i * width,
              s.sum[i],
              task.out + row * task.out_row_stride + head * task.out_head_stride,
              width);
  }
}

}  // namespace nibble::cpu
