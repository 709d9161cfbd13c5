// Causal attention of up to kMaxQueries queries over one KV head, as a template over the vectors of
// attention_avx2.cpp and attention_avx512.cpp. Included by ISA files only.
//
// Plan: KV is walked in tiles of kTile positions whose borders are multiples of kTile from position
// 0, whatever the chunk. A tile of K, then of V, is widened to FP32 once and used by all queries
// (rows of a prefill chunk, heads of a GQA group); one or two queries widen it in registers. Per
// query: scores, online softmax per tile, then p * V in ascending position. Prefill, chunks and
// decode run this same code, and a query touches its own state only, so its bits depend on its
// position and KV alone.
//
// A score is eight interleaved partial sums over channels, added up by one fixed tree; a vector of
// 16 lanes holds those of two positions. For values lanes are channels. So every width gives the
// same bits.
//
// V, beside what simd_math.h asks for:
//   widen(from): kLanes bf16 or e4m3 to FP32
//   row_begin(position, width), kRowStep: where a row of a widened K tile starts, and the distance
//     of its groups of eight channels
//   spread(q), sum_rows(sums): for sum_products(): eight channels laid out as in a row, the sums of
//     eight such vectors
//   scores(q, tile, width): of kLanes positions whose rows begin at `tile`
//   scores_of_rows(q, rows, width): of kLanes rows as they are stored
//   hide(scores, count): minus infinity in the lanes from count on
//   top(v): the largest lane
#pragma once

#include <cstdint>
#include <cstring>

#include <immintrin.h>

#include "backends/cpu/isa_abi.h"
#include "backends/cpu/simd_avx2.h"
#include "backends/cpu/simd_math_avx2.h"

namespace nibble::cpu {
namespace {

constexpr int kTile = 32;
constexpr int kFewQueries = 2;  // so many do not pay for a widened tile

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

// One row of head_dim bf16 or e4m3 channels to FP32, zero-padded to `width`; eight at every `step`.
template <typename T>
void widen(const T* from, int64_t head_dim, int width, float* to, int step) {
  int i = 0;
  for (; i + 8 <= head_dim; i += 8, to += step) {
    _mm256_store_ps(to, load8(from + i));
  }
  if (i < width) {
    alignas(32) T tail[8] = {};
    for (int j = 0; i + j < head_dim; ++j) {
      tail[j] = from[i + j];
    }
    _mm256_store_ps(to, load8(tail));
  }
}

// visit(j, at): the row of position base + j begins at element `at` of a cache. Pages of a sequence
// lie anywhere.
template <typename Visit>
void walk_rows(const AttentionTask& task,
               int64_t page_stride,
               int64_t slot_stride,
               int64_t base,
               int count,
               const Visit& visit) {
  int64_t page = base / task.page_size;
  int64_t slot = base % task.page_size;
  for (int j = 0; j < count; ++j) {
    visit(j, task.pages[page] * page_stride + slot * slot_stride);
    if (++slot == task.page_size) {
      slot = 0;
      ++page;
    }
  }
}

// Where the rows of a tile are; past the last, the last again.
template <typename T>
void find_rows(const AttentionTask& task,
               const void* cache,
               int64_t page_stride,
               int64_t slot_stride,
               int64_t base,
               int count,
               const T** rows) {
  walk_rows(task, page_stride, slot_stride, base, count, [&](int j, int64_t at) {
    rows[j] = static_cast<const T*>(cache) + at;
  });
  for (int j = count; j < kTile; ++j) {
    rows[j] = rows[count - 1];
  }
}

template <typename T>
struct TileRows {
  const T* k[kTile];
  const T* v[kTile];
};

// The rows of a tile to L1; none where base is past the end.
void prefetch_tile(const AttentionTask& task,
                   const void* cache,
                   int64_t page_stride,
                   int64_t slot_stride,
                   int64_t base,
                   int64_t end) {
  const int64_t element = task.is_e4m3 ? 1 : 2;
  const int64_t bytes = task.head_dim * element;
  const int count = static_cast<int>(base + kTile < end ? kTile : end - base);
  walk_rows(task, page_stride, slot_stride, base, count, [&](int, int64_t at) {
    const char* row = static_cast<const char*>(cache) + at * element;
    for (int64_t i = 0; i < bytes; i += 64) {
      _mm_prefetch(row + i, _MM_HINT_T0);
    }
  });
}

// V::sum_rows of q * row(j, i), i ascending: the products of a query with V::kLanes positions.
template <typename V, typename Row>
typename V::Vec sum_products(const float* q, int width, const Row& row) {
  typename V::Vec sum[8];
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    sum[j] = V::zero();
  }
  for (int i = 0; i < width; i += 8) {
    const typename V::Vec channels = V::spread(q + i);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      sum[j] = V::fma(channels, row(j, i), sum[j]);
    }
  }
  return V::sum_rows(sum);
}

// Softmax weights of one query over the tile; rescales what was summed before. score(v) are the
// products with the v-th kLanes positions.
template <typename V, typename Score>
void weigh_tile(Scratch& s, int query, float scale, int width, const Score& score) {
  using Vec = typename V::Vec;
  constexpr int kVectors = kTile / V::kLanes;
  const int count = s.count[query];
  float* weights = s.weights + query * kTile;
  const Vec minus_inf = V::set1(-__builtin_inff());
  Vec scores[kVectors];
  Vec top = minus_inf;
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    scores[v] = minus_inf;
    if (v * V::kLanes < count) {
      scores[v] = V::hide(V::mul(score(v), V::set1(scale)), count - v * V::kLanes);
    }
    top = V::max(top, scores[v]);
  }
  const float tile_top = V::top(top);
  const float old_top = s.top[query];
  const float new_top = tile_top > old_top ? tile_top : old_top;
  const Vec shift = V::set1(new_top);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    V::store(weights + v * V::kLanes, exp_of<V>(V::sub(scores[v], shift)));
  }
  __m256 sum = _mm256_load_ps(weights);
#pragma GCC unroll 3
  for (int i = 8; i < kTile; i += 8) {
    sum = _mm256_add_ps(sum, _mm256_load_ps(weights + i));
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

// acc[kVecs * kLanes channels] += weights * V, positions ascending; value(j, i) is vector i of
// position j.
template <typename V, int kVecs, typename Value>
void add_values(const float* weights, int count, float* acc, const Value& value) {
  typename V::Vec sum[kVecs];
#pragma GCC unroll 8
  for (int i = 0; i < kVecs; ++i) {
    sum[i] = V::load(acc + i * V::kLanes);
  }
  for (int j = 0; j < count; ++j) {
    const typename V::Vec weight = V::set1(weights[j]);
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i) {
      sum[i] = V::fma(weight, value(j, i), sum[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kVecs; ++i) {
    V::store(acc + i * V::kLanes, sum[i]);
  }
}

// All channels; wide(j, channel) and narrow(j, channel) give V's and eight lanes.
template <typename V, typename Wide, typename Narrow>
void add_all_values(const float* weights,
                    int count,
                    int width,
                    float* acc,
                    const Wide& wide,
                    const Narrow& narrow) {
  constexpr int kVecs = 64 / V::kLanes;
  int channel = 0;
  for (; channel + 64 <= width; channel += 64) {
    add_values<V, kVecs>(weights, count, acc + channel, [&](int j, int i) {
      return wide(j, channel + i * V::kLanes);
    });
  }
  for (; channel < width; channel += 8) {
    add_values<Math8, 1>(
        weights, count, acc + channel, [&](int j, int) { return narrow(j, channel); });
  }
}

// All queries over one tile of KV, widened.
template <typename V, typename T>
void attend_tile(const AttentionTask& task,
                 Scratch& s,
                 const TileRows<T>& rows,
                 int count,
                 int queries,
                 int width) {
  for (int j = 0; j < count; ++j) {
    widen(rows.k[j], task.head_dim, width, s.tile + V::row_begin(j, width), V::kRowStep);
  }
  const int padded = (count + V::kLanes - 1) / V::kLanes * V::kLanes;
  for (int j = count; j < padded; ++j) {
    for (int i = 0; i < width; i += 8) {
      _mm256_store_ps(s.tile + V::row_begin(j, width) + i / 8 * V::kRowStep, _mm256_setzero_ps());
    }
  }
  for (int query = 0; query < queries; ++query) {
    if (s.count[query] > 0) {
      weigh_tile<V>(s, query, task.scale, width, [&](int v) {
        return V::scores(s.q + query * width, s.tile + v * V::kLanes * width, width);
      });
    }
  }
  for (int j = 0; j < count; ++j) {
    widen(rows.v[j], task.head_dim, width, s.tile + j * width, 8);
  }
  for (int query = 0; query < queries; ++query) {
    add_all_values<V>(
        s.weights + query * kTile,
        s.count[query],
        width,
        s.acc + query * width,
        [&](int j, int channel) { return V::load(s.tile + j * width + channel); },
        [&](int j, int channel) { return Math8::load(s.tile + j * width + channel); });
  }
}

// The same without a widened tile; width is head_dim.
template <typename V, typename T>
void attend_rows(
    const AttentionTask& task, Scratch& s, const TileRows<T>& rows, int queries, int width) {
  for (int query = 0; query < queries; ++query) {
    if (s.count[query] == 0) {
      continue;
    }
    weigh_tile<V>(s, query, task.scale, width, [&](int v) {
      return V::scores_of_rows(s.q + query * width, rows.k + v * V::kLanes, width);
    });
    add_all_values<V>(
        s.weights + query * kTile,
        s.count[query],
        width,
        s.acc + query * width,
        [&](int j, int channel) { return V::widen(rows.v[j] + channel); },
        [&](int j, int channel) { return load8(rows.v[j] + channel); });
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

template <typename V, typename T>
void attend(const AttentionTask& task) {
  Scratch s;
  const int width = static_cast<int>((task.head_dim + 7) / 8 * 8);
  const int queries = static_cast<int>(task.end - task.begin);
  for (int i = 0; i < queries; ++i) {
    const int64_t row = (task.begin + i) / task.heads_per_kv;
    const int64_t head = (task.begin + i) % task.heads_per_kv;
    widen(task.q + row * task.q_row_stride + head * task.q_head_stride,
          task.head_dim,
          width,
          s.q + i * width,
          8);
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
    const int count = left < kTile ? static_cast<int>(left) : kTile;
    for (int i = 0; i < queries; ++i) {
      const int64_t position = task.first_position + (task.begin + i) / task.heads_per_kv;
      const int64_t seen = position + 1 - base;
      s.count[i] = seen < 0 ? 0 : (seen < kTile ? static_cast<int>(seen) : kTile);
    }
    TileRows<T> rows;
    find_rows(task, task.k_cache, task.k_page_stride, task.k_slot_stride, base, count, rows.k);
    find_rows(task, task.v_cache, task.v_page_stride, task.v_slot_stride, base, count, rows.v);
    if (queries > kFewQueries || width != task.head_dim) {
      attend_tile<V>(task, s, rows, count, queries, width);
    } else {
      attend_rows<V>(task, s, rows, queries, width);
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

template <typename V>
void attend(const AttentionTask& task) {
  if (task.is_e4m3) {
    attend<V, uint8_t>(task);
  } else {
    attend<V, uint16_t>(task);
  }
}

}  // namespace
}  // namespace nibble::cpu
