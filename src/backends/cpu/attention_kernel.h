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
//   scores<kQueries>(q, tile, width, products): the products of one or two queries `width` apart
//     with the kLanes positions whose rows begin at `tile`
//   products_of_rows<kQueries>(q, rows, width, products): the same of queries `width` apart with
//     kLanes rows as they are stored
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
constexpr int kFewQueries = 4;  // so many do not pay for a widened tile

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
  const T* rows[2 * kTile];  // of K, then of V
};

// Fetches the rows of a tile, K then V, into the caches in steps: so many lines at once that the
// core has room for them, or the loads behind wait for memory.
template <typename T>
class RowFetcher {
 public:
  RowFetcher(const TileRows<T>& rows, int64_t head_dim)
      : rows_(rows.rows), bytes_(head_dim * static_cast<int64_t>(sizeof(T))) {}
  static RowFetcher nothing() {
    RowFetcher fetcher;
    fetcher.next_ = 2 * kTile;
    return fetcher;
  }
  // Up to row `end` of 2 * kTile.
  void fetch(int end) {
    for (; next_ < end; ++next_) {
      const char* row = reinterpret_cast<const char*>(rows_[next_]);
      for (int64_t i = 0; i < bytes_; i += 64) {
        _mm_prefetch(row + i, _MM_HINT_T0);
      }
    }
  }

 private:
  RowFetcher() = default;
  const T* const* rows_ = nullptr;
  int64_t bytes_ = 0;
  int next_ = 0;
};

// V::sum_rows of q * row(j, i), i ascending: the products of kQueries queries, `width` apart, with
// V::kLanes positions. kAtOnce rows at a time, as registers allow.
template <typename V, int kQueries, int kAtOnce, typename Row>
void sum_products(const float* q, int width, const Row& row, typename V::Vec* products) {
  using Vec = typename V::Vec;
  Vec all[kQueries][8];
#pragma GCC unroll 2
  for (int first = 0; first < 8; first += kAtOnce) {
    Vec sum[kQueries][kAtOnce];
#pragma GCC unroll 2
    for (int n = 0; n < kQueries; ++n) {
#pragma GCC unroll 8
      for (int j = 0; j < kAtOnce; ++j) {
        sum[n][j] = V::zero();
      }
    }
    for (int i = 0; i < width; i += 8) {
      Vec channels[kQueries];
#pragma GCC unroll 2
      for (int n = 0; n < kQueries; ++n) {
        channels[n] = V::spread(q + n * width + i);
      }
#pragma GCC unroll 8
      for (int j = 0; j < kAtOnce; ++j) {
        const Vec values = row(first + j, i);
#pragma GCC unroll 2
        for (int n = 0; n < kQueries; ++n) {
          sum[n][j] = V::fma(channels[n], values, sum[n][j]);
        }
      }
    }
#pragma GCC unroll 2
    for (int n = 0; n < kQueries; ++n) {
#pragma GCC unroll 8
      for (int j = 0; j < kAtOnce; ++j) {
        all[n][first + j] = sum[n][j];
      }
    }
  }
#pragma GCC unroll 2
  for (int n = 0; n < kQueries; ++n) {
    products[n] = V::sum_rows(all[n]);
  }
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

// acc[kVecs * kLanes channels] += weights * V, positions ascending, for kQueries queries whose
// accumulators are `width` apart; value(j, i) is vector i of position j.
template <typename V, int kVecs, int kQueries, typename Value>
void add_values(const float* weights, int count, int width, float* acc, const Value& value) {
  using Vec = typename V::Vec;
  Vec sum[kQueries][kVecs];
#pragma GCC unroll 2
  for (int n = 0; n < kQueries; ++n) {
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i) {
      sum[n][i] = V::load(acc + n * width + i * V::kLanes);
    }
  }
  for (int j = 0; j < count; ++j) {
    Vec weight[kQueries];
#pragma GCC unroll 2
    for (int n = 0; n < kQueries; ++n) {
      weight[n] = V::set1(weights[n * kTile + j]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i) {
      const Vec values = value(j, i);
#pragma GCC unroll 2
      for (int n = 0; n < kQueries; ++n) {
        sum[n][i] = V::fma(weight[n], values, sum[n][i]);
      }
    }
  }
#pragma GCC unroll 2
  for (int n = 0; n < kQueries; ++n) {
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i) {
      V::store(acc + n * width + i * V::kLanes, sum[n][i]);
    }
  }
}

// All channels of queries from `query` on; wide(j, channel) and narrow(j, channel) give V's and
// eight lanes. before(channel) is called before each range of channels.
template <typename V, int kQueries, typename Wide, typename Narrow, typename Before>
void add_all_values(Scratch& s,
                    int query,
                    int width,
                    const Wide& wide,
                    const Narrow& narrow,
                    const Before& before) {
  constexpr int kVecs = kQueries == 1 ? 64 / V::kLanes : 4;
  const float* weights = s.weights + query * kTile;
  const int count = s.count[query];
  float* acc = s.acc + query * width;
  int channel = 0;
  for (; channel + kVecs * V::kLanes <= width; channel += kVecs * V::kLanes) {
    before(channel + kVecs * V::kLanes);
    add_values<V, kVecs, kQueries>(weights, count, width, acc + channel, [&](int j, int i) {
      return wide(j, channel + i * V::kLanes);
    });
  }
  for (; channel < width; channel += 8) {
    before(channel + 8);
    add_values<Math8, 1, kQueries>(
        weights, count, width, acc + channel, [&](int j, int) { return narrow(j, channel); });
  }
}

// Calls body.operator()<n>(query) for the queries that see any of a tile: two that see the same
// positions share what is loaded of KV.
template <typename Body>
void for_pairs(const Scratch& s, int queries, const Body& body) {
  for (int query = 0; query < queries; ++query) {
    if (s.count[query] == 0) {
      continue;
    }
    if (query + 1 < queries && s.count[query] == s.count[query + 1]) {
      body.template operator()<2>(query);
      ++query;
    } else {
      body.template operator()<1>(query);
    }
  }
}

// Softmax weights of kQueries queries from `query` on over a widened tile of K.
template <typename V, int kQueries>
void weigh_widened(Scratch& s, int query, float scale, int width) {
  constexpr int kVectors = kTile / V::kLanes;
  typename V::Vec products[kVectors][kQueries];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    if (v * V::kLanes < s.count[query]) {
      V::template scores<kQueries>(
          s.q + query * width, s.tile + v * V::kLanes * width, width, products[v]);
    }
  }
#pragma GCC unroll 2
  for (int n = 0; n < kQueries; ++n) {
    weigh_tile<V>(s, query + n, scale, width, [&](int v) { return products[v][n]; });
  }
}

// All queries over one tile of KV, widened; fetches the rows `ahead`.
template <typename V, typename T>
void attend_tile(const AttentionTask& task,
                 Scratch& s,
                 const TileRows<T>& tile,
                 RowFetcher<T>& ahead,
                 int count,
                 int queries,
                 int width) {
  for (int j = 0; j < count; ++j) {
    ahead.fetch(j + 1);
    widen(tile.rows[j], task.head_dim, width, s.tile + V::row_begin(j, width), V::kRowStep);
  }
  const int padded = (count + V::kLanes - 1) / V::kLanes * V::kLanes;
  for (int j = count; j < padded; ++j) {
    for (int i = 0; i < width; i += 8) {
      _mm256_store_ps(s.tile + V::row_begin(j, width) + i / 8 * V::kRowStep, _mm256_setzero_ps());
    }
  }
  for_pairs(s, queries, [&]<int kQueries>(int query) {
    weigh_widened<V, kQueries>(s, query, task.scale, width);
  });
  for (int j = 0; j < count; ++j) {
    ahead.fetch(kTile + j + 1);
    widen(tile.rows[kTile + j], task.head_dim, width, s.tile + j * width, 8);
  }
  for_pairs(s, queries, [&]<int kQueries>(int query) {
    add_all_values<V, kQueries>(
        s,
        query,
        width,
        [&](int j, int channel) { return V::load(s.tile + j * width + channel); },
        [&](int j, int channel) { return Math8::load(s.tile + j * width + channel); },
        [](int) {});
  });
}

// kQueries queries from `query` on, which see the same positions, without a widened tile; width is
// head_dim.
template <typename V, int kQueries, typename T>
void attend_rows(const AttentionTask& task,
                 Scratch& s,
                 const TileRows<T>& tile,
                 RowFetcher<T>& ahead,
                 int query,
                 int width) {
  using Vec = typename V::Vec;
  constexpr int kVectors = kTile / V::kLanes;
  constexpr int kFirstRows = 24;  // so many while scores are computed, 4 with a query's weights
  const int count = s.count[query];
  Vec products[kVectors][kQueries];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    ahead.fetch(kFirstRows * (v + 1) / kVectors);
    if (v * V::kLanes < count) {
      V::template products_of_rows<kQueries>(
          s.q + query * width, tile.rows + v * V::kLanes, width, products[v]);
    }
  }
#pragma GCC unroll 2
  for (int n = 0; n < kQueries; ++n) {
    ahead.fetch(kFirstRows + 4 * (n + 1));
    weigh_tile<V>(s, query + n, task.scale, width, [&](int v) { return products[v][n]; });
  }
  const T* const* values = tile.rows + kTile;
  add_all_values<V, kQueries>(
      s,
      query,
      width,
      [&](int j, int channel) { return V::widen(values[j] + channel); },
      [&](int j, int channel) { return load8(values[j] + channel); },
      [&](int channels) { ahead.fetch(kTile + kTile * channels / width); });
}

template <typename V, typename T>
void attend_few(const AttentionTask& task,
                Scratch& s,
                const TileRows<T>& tile,
                RowFetcher<T>& ahead,
                int queries,
                int width) {
  for_pairs(s, queries, [&]<int kQueries>(int query) {
    attend_rows<V, kQueries>(task, s, tile, ahead, query, width);
  });
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
  // A tile and the two after it, which are fetched meanwhile.
  TileRows<T> tiles[3];
  const auto find_tile = [&](int64_t base, TileRows<T>& tile) {
    const int64_t left = kv_count - base;
    const int count = left < kTile ? static_cast<int>(left) : kTile;
    find_rows(task, task.k_cache, task.k_page_stride, task.k_slot_stride, base, count, tile.rows);
    find_rows(
        task, task.v_cache, task.v_page_stride, task.v_slot_stride, base, count, tile.rows + kTile);
  };
  for (int n = 0; n < 2 && n * kTile < kv_count; ++n) {
    find_tile(n * kTile, tiles[n]);
    RowFetcher<T>(tiles[n], task.head_dim).fetch(2 * kTile);
  }
  for (int64_t n = 0, base = 0; base < kv_count; ++n, base += kTile) {
    const int64_t left = kv_count - base;
    const int count = left < kTile ? static_cast<int>(left) : kTile;
    for (int i = 0; i < queries; ++i) {
      const int64_t position = task.first_position + (task.begin + i) / task.heads_per_kv;
      const int64_t seen = position + 1 - base;
      s.count[i] = seen < 0 ? 0 : (seen < kTile ? static_cast<int>(seen) : kTile);
    }
    TileRows<T>& next = tiles[(n + 2) % 3];
    RowFetcher<T> ahead(next, task.head_dim);
    if (base + 2 * kTile < kv_count) {
      find_tile(base + 2 * kTile, next);
    } else {
      ahead = RowFetcher<T>::nothing();
    }
    if (queries > kFewQueries || width != task.head_dim) {
      attend_tile<V>(task, s, tiles[n % 3], ahead, count, queries, width);
    } else {
      attend_few<V>(task, s, tiles[n % 3], ahead, queries, width);
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
