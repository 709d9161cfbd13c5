// attention_prefill_sm90: causal attention of prompt chunks over a paged KV cache.
//
// Contract: PagedAttention (attention_paged.h), head_dim 64 or 128, bf16 or e4m3 keys and values.
// Row i of a sequence with c rows sits at position kv_len - c + i and sees positions up to its own.
// The bits of a row depend on its own query, KV and position only: keys are walked in tiles of 128
// from position 0, and a row that sees nothing of a tile is left as it was.
//
// Plan: a tile is 128 rows of one KV head, where a row is a (token, head of the group) pair, so
// that short chunks fill tiles too. A warpgroup loads: the rows of Q by cp.async, tiles of K and V
// by TMA, a box a page and 64 channels, into rings of two. Two warpgroups compute 64 rows each:
// scores by wgmma from shared memory (FP32), base-2 online softmax in FP32, weights rounded to bf16
// as the A operand of the second wgmma. The next tile's scores are issued before the last tile's
// weights, so the softmax of one tile runs beside the second product of the tile before, and the
// two warpgroups take turns at the tensor cores (the schedule of FlashAttention-3, Shah et al.
// 2024).
//
// Keys and values of e4m3 come by cp.async as they are; the thread that asked for a piece turns it
// into f16, which holds it exactly, on its way to the tile. Queries and weights are then f16 too.
//
// Blocks stay and take tiles from a counter, about the heaviest first; the loads of the
// next tile run beside the end of the last one. No plan from the host: blocks find their tiles in
// q_begin. Needs two counters that are zero, and leaves them so.
#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/attention_paged.h"
#include "backends/cuda/cuda_check.h"
#include "backends/cuda/device/attention.cuh"
#include "backends/cuda/device/wgmma_attention.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/tensor_map.h"
#include "base/check.h"

namespace nibble::cuda {

namespace {

constexpr int kRows = 128;  // of queries, a block
constexpr int kTile = 128;  // keys
constexpr int kStages = 2;
constexpr int kFewTiles = 6;   // a block
constexpr int kThreads = 384;  // a loading warpgroup and two that compute
constexpr int kLoaderRegisters = 40;
constexpr int kComputeRegisters = 232;
constexpr int kConvertingRegisters = 72;      // of a loading warpgroup that converts,
constexpr int kComputeRegistersBeside = 216;  // and of those beside it
constexpr float kMinusInfinity = -__builtin_huge_valf();

struct Params {
  CUtensorMap k_map;  // [slots, kv_heads * head_dim / 64, 64] bf16, boxes of box_rows x 1 x 64;
                      // not of e4m3
  CUtensorMap v_map;
  PagedAttention call;
  float scale_log2;
  int page_shift;
  int box_rows;  // min(page_size, kTile)
  int group;
};

template <typename Cache, int kDim>
struct Layout {
  static constexpr bool kIsE4m3 = sizeof(Cache) == 1;
  static constexpr int kHalves = kDim / 64;
  static constexpr int kHalfBytes = kTile * 128;  // 64 channels of a tile
  static constexpr int kTileBytes = kHalves * kHalfBytes;
  static constexpr int kQ = 0;  // [2 warpgroups][halves][64 rows][128 bytes]
  static constexpr int kK = kRows * kDim * 2;
  static constexpr int kV = kK + kStages * kTileBytes;
  static constexpr int kCodes = kV + kStages * kTileBytes;
  static constexpr int kCodesBytes = kTile * kDim;  // [2 tiles in turn][keys, values]
  static constexpr int kBarriers = kCodes + (kIsE4m3 ? 4 * kCodesBytes : 0);
  static constexpr int kNumBarriers = 4 * kStages + 2;
  static constexpr int kBytes = kBarriers + kNumBarriers * 8 + 1024;  // the base is aligned by hand
};

struct Work {
  int sequence;  // negative: no tile is left
  int kv_head;
  int tile;    // of kRows rows
  int rows;    // (token, head) pairs of the sequence
  int first;   // its first row of q
  int offset;  // position of its first row
  int length;  // KV

  __device__ __forceinline__ int last_row() const { return min(tile * kRows + kRows, rows) - 1; }
  __device__ __forceinline__ int key_tiles(int group) const {
    return (offset + last_row() / group) / kTile + 1;
  }
};

__device__ __forceinline__ int tiles_of(const Params& p, int sequence, int* first, int* tokens) {
  *first = sequence < p.call.seqs ? p.call.q_begin[sequence] : 0;
  *tokens = sequence < p.call.seqs ? p.call.q_begin[sequence + 1] - *first : 0;
  return (*tokens * p.group + kRows - 1) / kRows;
}

/// Tiles of one KV head that are among the last `most` of their sequence.
__device__ __forceinline__ int count_tiles(const Params& p, int most) {
  int count = 0;
  for (int s = static_cast<int>(threadIdx.x) % 32; s < p.call.seqs; s += 32) {
    int first = 0;
    int tokens = 0;
    count += min(tiles_of(p, s, &first, &tokens), most);
  }
  return __reduce_add_sync(~0u, count);
}

/// Tile `tile` of sequence `round` + `from`, whose lane knows its first row and tokens.
__device__ __forceinline__ void set_work(
    const Params& p, Work& work, int round, int from, int tile, int first, int tokens) {
  work.sequence = round + from;
  work.tile = tile;
  work.first = __shfl_sync(~0u, first, from);
  tokens = __shfl_sync(~0u, tokens, from);
  work.rows = tokens * p.group;
  work.length = p.call.kv_lens[work.sequence];
  work.offset = work.length - tokens;
}

/// Tile `at` of a head: the last tile of every sequence comes first, then the last but one of all.
__device__ __forceinline__ void find_by_rank(const Params& p, Work& work, int at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int rank = 0;  // the largest with count_tiles(rank) <= at
  int above = (p.call.tokens * p.group + kRows - 1) / kRows + 1;
  while (above - rank > 1) {
    const int middle = (rank + above) / 2;
    if (count_tiles(p, middle) <= at) {
      rank = middle;
    } else {
      above = middle;
    }
  }
  int skip = at - count_tiles(p, rank);  // sequences that have such a tile
  for (int round = 0;; round += 32) {
    int first = 0;
    int tokens = 0;
    const int count = tiles_of(p, round + lane, &first, &tokens);
    const unsigned have = __ballot_sync(~0u, count > rank);
    if (skip >= __popc(have)) {
      skip -= __popc(have);
      continue;
    }
    const int from = static_cast<int>(__fns(have, 0, skip + 1));
    set_work(p, work, round, from, __shfl_sync(~0u, count, from) - 1 - rank, first, tokens);
    return;
  }
}

/// Tile `at` of a head: sequence after sequence, the last tile of each first.
__device__ __forceinline__ void find_by_sequence(const Params& p, Work& work, int at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int before = 0;
  for (int round = 0;; round += 32) {
    int first = 0;
    int tokens = 0;
    int upto = tiles_of(p, round + lane, &first, &tokens);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, upto, step);
      upto += lane >= step ? other : 0;
    }
    const unsigned past = __ballot_sync(~0u, before + upto > at);
    if (past != 0) {
      const int from = __ffs(static_cast<int>(past)) - 1;
      set_work(p, work, round, from, before + __shfl_sync(~0u, upto, from) - 1 - at, first, tokens);
      return;
    }
    before += __shfl_sync(~0u, upto, 31);
  }
}

/// Tile `index` of the `tiles` times kv_heads there are. Few tiles a block: the heaviest of all
/// heads first, so that none begins late. Many: head after head, so that blocks that run side by
/// side read the same keys. Every warp finds it by itself.
__device__ __forceinline__ Work find_work(const Params& p, int tiles, int index) {
  Work work{};
  work.sequence = -1;
  const int all = tiles * p.call.kv_heads;
  if (index >= all) {
    return work;
  }
  if (all <= kFewTiles * static_cast<int>(gridDim.x)) {
    const int at = index / p.call.kv_heads;
    work.kv_head = index - at * p.call.kv_heads;
    find_by_rank(p, work, at);
  } else {
    work.kv_head = index / tiles;
    find_by_sequence(p, work, index - work.kv_head * tiles);
  }
  return work;
}

/// Loads the boxes of tile `tile` that hold keys of the sequence. By the loading warpgroup: one
/// warp alone starts a box every 90 ns, too slow for pages of 16.
template <typename Cache, int kDim>
__device__ __forceinline__ void load_tile(const Params& p,
                                          const CUtensorMap* map,
                                          const Work& work,
                                          int tile,
                                          uint32_t to,
                                          uint32_t barrier) {
  using L = Layout<Cache, kDim>;
  const int begin = tile * kTile;
  const int boxes = min(kTile, work.length - begin + p.box_rows - 1) / p.box_rows;
  if (threadIdx.x == 0) {  // copies that end before this are counted all the same
    barrier_expect_bytes(barrier, static_cast<uint32_t>(boxes * p.box_rows * kDim * 2));
  }
  const int32_t* table = p.call.page_table + work.sequence * p.call.table_stride;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x % 32 * 4 + threadIdx.x / 32); i < boxes * L::kHalves;
       i += 128) {
    const int box = i / L::kHalves;
    const int half = i % L::kHalves;
    const int position = begin + box * p.box_rows;
    const int slot = (__ldg(table + (position >> p.page_shift)) << p.page_shift) +
                     (position & (p.call.page_size - 1));
    tensor_copy_3d(to + half * L::kHalfBytes + box * p.box_rows * 128,
                   map,
                   0,
                   work.kv_head * L::kHalves + half,
                   slot,
                   barrier,
                   kEvictNormal);
  }
}

/// The pieces of 16 codes that a thread of the loading warpgroup has of every tile: a segment of
/// rows that lie kStep apart.
template <int kDim>
struct Pieces {
  static constexpr int kSegments = kDim / 16;
  static constexpr int kStep = 128 / kSegments;
  static constexpr int kCount = kTile / kStep;
  static __device__ __forceinline__ int segment() {
    return static_cast<int>(threadIdx.x) % kSegments;
  }
  static __device__ __forceinline__ int row(int i) {
    return static_cast<int>(threadIdx.x) / kSegments + i * kStep;
  }
  static __device__ __forceinline__ int place(int i) {
    return (row(i) * kSegments + segment()) * 16;
  }

  int slots[kCount];  // of the tile that was looked up last; negative: past the sequence

  __device__ __forceinline__ void look_up(const Params& p, const Work& work, int tile) {
    const int32_t* table = p.call.page_table + work.sequence * p.call.table_stride;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int position = tile * kTile + row(i);
      const int inside = min(position, work.length - 1);
      slots[i] = __ldg(table + (inside >> p.page_shift)) << p.page_shift |
                 (inside & (p.call.page_size - 1));
      slots[i] = position < work.length ? slots[i] : ~slots[i];
    }
  }
  /// Starts copying the codes to `to`, zeros past the sequence.
  __device__ __forceinline__ void request(const Params& p,
                                          const void* cache,
                                          int kv_head,
                                          uint32_t to) const {
    const auto* base = static_cast<const uint8_t*>(cache) + kv_head * kDim + segment() * 16;
    const int64_t token_bytes = static_cast<int64_t>(p.call.kv_heads) * kDim;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool valid = slots[i] >= 0;
      copy_async_16(to + place(i), base + (valid ? slots[i] : ~slots[i]) * token_bytes, valid);
    }
    copy_async_commit();
  }
};

/// Turns this thread's pieces, which have arrived, into f16 in the tile at `to`.
template <typename Cache, int kDim>
__device__ __forceinline__ void convert_codes(uint32_t codes, uint32_t to, uint32_t barrier) {
  using L = Layout<Cache, kDim>;
  using P = Pieces<kDim>;
  const int segment = P::segment();
  const int half = segment / 4;
#pragma unroll 4
  for (int i = 0; i < P::kCount; ++i) {
    const uint4 v = load_shared_16(codes + P::place(i));
    const int row = P::row(i);
    const uint4 f16[2] = {
        make_uint4(
            f16_of_e4m3(v.x), f16_of_e4m3(v.x >> 16), f16_of_e4m3(v.y), f16_of_e4m3(v.y >> 16)),
        make_uint4(
            f16_of_e4m3(v.z), f16_of_e4m3(v.z >> 16), f16_of_e4m3(v.w), f16_of_e4m3(v.w >> 16))};
    // Halves in turn: different banks.
    const bool swap = (half & 1) != 0;
    const uint32_t at = to + half * L::kHalfBytes + row * 128;
    const int chunk = (segment % 4) * 2;
    store_shared_16(at + (((chunk + (swap ? 1 : 0)) ^ row) & 7) * 16, swap ? f16[1] : f16[0]);
    store_shared_16(at + (((chunk + (swap ? 0 : 1)) ^ row) & 7) * 16, swap ? f16[0] : f16[1]);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  barrier_arrive(barrier);
}

/// Where this thread's piece of row `row` of Q lies: [2 warpgroups][halves][64 rows][128 bytes].
template <int kDim>
__device__ __forceinline__ uint32_t query_place(int row) {
  const int segment = static_cast<int>(threadIdx.x) % (kDim / 8);
  return row / 64 * (64 * kDim * 2) + segment / 8 * (64 * 128) + row % 64 * 128 +
         ((segment ^ row) & 7) * 16;
}

/// Starts copying the rows of Q that the tile needs, zeros past the last one. By the loading
/// warpgroup.
template <int kDim>
__device__ __forceinline__ void load_rows(const Params& p, const Work& work, uint32_t to) {
  constexpr int kSegments = kDim / 8;
  const int segment = static_cast<int>(threadIdx.x) % kSegments;
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x) / kSegments; row < kRows; row += 128 / kSegments) {
    const int pair = work.tile * kRows + row;
    const int token = min(pair, work.rows - 1) / p.group;
    const int head = work.kv_head * p.group + pair - token * p.group;
    const auto* from = static_cast<const __nv_bfloat16*>(p.call.q) +
                       static_cast<int64_t>(work.first + token) * p.call.q_stride +
                       (pair < work.rows ? head * kDim + segment * 8 : 0);
    copy_async_16(to + query_place<kDim>(row), from, pair < work.rows);
  }
  copy_async_commit();
}

/// This thread's pieces of Q, which have arrived, from bf16 to f16.
template <int kDim>
__device__ __forceinline__ void convert_rows(uint32_t to) {
  constexpr int kSegments = kDim / 8;
#pragma unroll 4
  for (int i = 0; i < kSegments; ++i) {
    const int row = static_cast<int>(threadIdx.x) / kSegments + i * (128 / kSegments);
    const uint32_t at = to + query_place<kDim>(row);
    const uint4 v = load_shared_16(at);
    store_shared_16(
        at, make_uint4(f16_of_bf16(v.x), f16_of_bf16(v.y), f16_of_bf16(v.z), f16_of_bf16(v.w)));
  }
}

/// Zeroes rows [from, kTile) of a tile of V: what lies there was never written, and a weight of
/// zero does not silence a NaN. By a whole warpgroup.
template <typename Cache, int kDim>
__device__ __forceinline__ void zero_rows(uint8_t* tile, int from, int thread, int barrier) {
  using L = Layout<Cache, kDim>;
  for (int i = from * 8 + thread; i < kTile * 8; i += 128) {
#pragma unroll
    for (int half = 0; half < L::kHalves; ++half) {
      *reinterpret_cast<uint4*>(tile + half * L::kHalfBytes + i * 16) = make_uint4(0, 0, 0, 0);
    }
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  named_barrier_sync(barrier, 128);
}

template <typename Cache, int kDim>
__global__ void __launch_bounds__(kThreads, 1) attention_prefill_sm90(
    const __grid_constant__ Params p) {
  using L = Layout<Cache, kDim>;
  extern __shared__ uint8_t raw[];
  __shared__ Work shared_work;
  __shared__ int shared_index;
  uint8_t* shared = raw + ((1024 - (shared_address(raw) & 1023)) & 1023);
  const uint32_t base = shared_address(shared);
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  const auto full_k = [&](int stage) { return base + L::kBarriers + stage * 8; };
  const auto full_v = [&](int stage) { return base + L::kBarriers + (kStages + stage) * 8; };
  const auto empty_k = [&](int stage) { return base + L::kBarriers + (2 * kStages + stage) * 8; };
  const auto empty_v = [&](int stage) { return base + L::kBarriers + (3 * kStages + stage) * 8; };
  const uint32_t full_q = base + L::kBarriers + 4 * kStages * 8;
  const uint32_t empty_q = full_q + 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full_k(i), L::kIsE4m3 ? 128 : 1);  // threads that convert
      barrier_init(full_v(i), L::kIsE4m3 ? 128 : 1);
      barrier_init(empty_k(i), 8);  // warps that compute
      barrier_init(empty_v(i), 8);
    }
    barrier_init(full_q, 128);  // threads that load
    barrier_init(empty_q, 8);
    barrier_init_fence();
    if constexpr (!L::kIsE4m3) {
      tensor_prefetch(&p.k_map);
      tensor_prefetch(&p.v_map);
    }
  }
  allow_next_kernel();
  wait_for_previous_kernel();
  __syncthreads();

  if (warpgroup == 0) {
    // ---- load
    give_registers<L::kIsE4m3 ? kConvertingRegisters : kLoaderRegisters>();
    const int all = count_tiles(p, 1 << 30);
    int loaded = 0;  // tiles of keys, all tiles of rows together
    [[maybe_unused]] Pieces<kDim> pieces;
    Work work = find_work(p, all, static_cast<int>(blockIdx.x));
    for (int item = 0;; ++item) {
      const bool none = work.sequence < 0;
      const int tiles = none ? 0 : work.key_tiles(p.group);
      if (threadIdx.x == 0 && !none) {  // asked for early: the answer takes long
        shared_index = static_cast<int>(gridDim.x + atomicAdd(p.call.counters, 1u));
      }
      // The codes of two tiles are on their way while those before them are converted.
      const auto codes_of = [&](int which, int tile) {
        return base + L::kCodes + (tile % 2 * 2 + which) * L::kCodesBytes;
      };
      const auto request = [&](int which, int tile) {
        if constexpr (L::kIsE4m3) {
          if (tile < tiles) {
            if (which == 0) {
              pieces.look_up(p, work, tile);
            }
            pieces.request(
                p, which == 0 ? p.call.k : p.call.v, work.kv_head, codes_of(which, tile));
          } else {
            copy_async_commit();
          }
        }
      };
      const auto load = [&](int which, int tile) {
        const int stage = (loaded + tile) % kStages;
        barrier_wait(which == 0 ? empty_k(stage) : empty_v(stage),
                     ((loaded + tile) / kStages & 1) ^ 1);
        const uint32_t to = base + (which == 0 ? L::kK : L::kV) + stage * L::kTileBytes;
        const uint32_t full = which == 0 ? full_k(stage) : full_v(stage);
        if constexpr (L::kIsE4m3) {
          copy_async_wait<3>();
          convert_codes<Cache, kDim>(codes_of(which, tile), to, full);
        } else {
          load_tile<Cache, kDim>(p, which == 0 ? &p.k_map : &p.v_map, work, tile, to, full);
        }
      };
      for (int tile = 0; tile < 2; ++tile) {
        request(0, tile);
        request(1, tile);
      }
      if (!none) {
        load(0, 0);
      }
      barrier_wait(empty_q, (item & 1) ^ 1);
      if (threadIdx.x == 0) {
        shared_work = work;
      }
      if (!none) {
        load_rows<kDim>(p, work, base + L::kQ);
        if constexpr (L::kIsE4m3) {
          copy_async_wait<0>();
          convert_rows<kDim>(base + L::kQ);
        } else {
          load(1, 0);
          copy_async_wait<0>();
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      }
      barrier_arrive(full_q);
      if (none) {
        break;
      }
      if constexpr (L::kIsE4m3) {
        request(0, 2);
        load(1, 0);
        request(1, 2);
      }
#pragma unroll 1
      for (int tile = 1; tile < tiles; ++tile) {
        load(0, tile);
        request(0, tile + 2);
        load(1, tile);
        request(1, tile + 2);
      }
      loaded += tiles;
      named_barrier_sync(5, 128);
      const int next = shared_index;
      named_barrier_sync(5, 128);
      work = find_work(p, all, next);
    }
    // The last block to end sets the counters back: by then none takes a tile any more.
    if (threadIdx.x == 0) {
      __threadfence();
      if (atomicAdd(p.call.counters + 1, 1u) == gridDim.x - 1) {
        p.call.counters[0] = 0;
        p.call.counters[1] = 0;
      }
    }
    return;
  }

  // ---- compute
  take_registers<L::kIsE4m3 ? kComputeRegistersBeside : kComputeRegisters>();
  const int mine = warpgroup - 1;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int warp = thread / 32;
  const int lane = thread % 32;

  const float scale_log2 = L::kIsE4m3 ? p.scale_log2 * *p.call.k_scale : p.scale_log2;
  float s[64];
  float o[kDim / 2];
  uint32_t weights[8][4];
  float top[2];
  float sum[2];
  float keep[2];
  int position[2];  // of this thread's two rows

  const uint32_t q_low = wgmma_descriptor_low(base + L::kQ + mine * (64 * kDim * 2));
  const auto issue_scores = [&](int stage) {
    const uint32_t k_low = wgmma_descriptor_low(base + L::kK + stage * L::kTileBytes);
    pin_accumulators(s);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const uint32_t inside = step % 4 * 2;
      wgmma_ss_128<L::kIsE4m3>(s,
                               wgmma_descriptor(q_low + step / 4 * (64 * 128 / 16) + inside),
                               wgmma_descriptor(k_low + step / 4 * (L::kHalfBytes / 16) + inside),
                               step != 0);
    }
    wgmma_commit();
  };
  const auto issue_out = [&](int stage) {
    const uint32_t v_low =
        wgmma_transposed_low(base + L::kV + stage * L::kTileBytes, L::kHalfBytes);
    pin_registers(weights);
    pin_accumulators(o);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTile / 16; ++step) {
      wgmma_rs_transposed<L::kIsE4m3>(o, weights[step], wgmma_descriptor(v_low + step * 128));
    }
    wgmma_commit();
  };
  const auto mask = [&](int tile) {
    const int column = tile * kTile + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      if (column + i / 4 * 8 + i % 2 > position[i / 2 % 2]) {
        s[i] = kMinusInfinity;
      }
    }
  };
  // Scores become weights; keep is what older sums are multiplied by.
  const auto softmax = [&] {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float highest = fmaxf(s[row * 2], s[row * 2 + 1]);
#pragma unroll
      for (int i = 1; i < 16; ++i) {
        highest = fmaxf(highest, fmaxf(s[i * 4 + row * 2], s[i * 4 + row * 2 + 1]));
      }
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
      highest = fmaxf(top[row], highest * scale_log2);
      keep[row] = exp2_fast(top[row] - highest);
      top[row] = highest;
      float total[2] = {0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < 16; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& x = s[i * 4 + row * 2 + j];
          x = exp2_fast(__fmaf_rn(x, scale_log2, -highest));
          total[j] += x;
        }
      }
      sum[row] = __fmaf_rn(sum[row], keep[row], total[0] + total[1]);
    }
  };
  const auto pack = [&] {
#pragma unroll
    for (int step = 0; step < 8; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = s[step * 8 + i * 2];
        const float high = s[step * 8 + i * 2 + 1];
        weights[step][i] = L::kIsE4m3 ? pack_f16(low, high) : pack_bf16(low, high);
      }
    }
  };
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) {
      barrier_arrive(barrier);
    }
  };

  // Turns: barrier 3 + warpgroup opens when the other one has issued its products.
  if (mine == 1) {
    asm volatile("bar.arrive 3, 256;" ::: "memory");
  }
  int loaded = 0;
  for (int item = 0;; ++item) {
    barrier_wait(full_q, item & 1);
    const Work work = shared_work;
    if (work.sequence < 0) {
      break;
    }
    const int tiles = work.key_tiles(p.group);
    const int first_row = work.tile * kRows + mine * 64;  // of the sequence's pairs
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int pair = min(first_row + warp * 16 + i * 8 + lane / 4, work.rows - 1);
      position[i] = work.offset + pair / p.group;
      top[i] = kMinusInfinity;
      sum[i] = 0.0f;
    }
    // Tiles below are seen whole by every row of this warpgroup.
    const int whole = (work.offset + min(first_row, work.rows - 1) / p.group + 1) / kTile;
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) {
      o[i] = 0.0f;
    }

    barrier_wait(full_k(loaded % kStages), loaded / kStages & 1);
    issue_scores(loaded % kStages);
    wgmma_wait<0>();
    pin_accumulators(s);
    release(empty_k(loaded % kStages));
    if (tiles == 1) {
      release(empty_q);
    }
    if (whole == 0) {
      mask(0);
    }
    softmax();
    pack();

    for (int tile = 1; tile < tiles; ++tile) {
      const int turn = loaded + tile;
      const int stage = turn % kStages;
      const int older = (turn - 1) % kStages;
      barrier_wait(full_k(stage), turn / kStages & 1);
      named_barrier_sync(3 + mine, 256);
      issue_scores(stage);
      barrier_wait(full_v(older), (turn - 1) / kStages & 1);
      issue_out(older);
      if (mine == 0) {
        asm volatile("bar.arrive 4, 256;" ::: "memory");
      } else {
        asm volatile("bar.arrive 3, 256;" ::: "memory");
      }
      wgmma_wait<1>();
      pin_accumulators(s);
      release(empty_k(stage));
      if (tile + 1 == tiles) {
        release(empty_q);
      }
      if (tile >= whole) {
        mask(tile);
      }
      softmax();
      wgmma_wait<0>();
      pin_registers(weights);
      pin_accumulators(o);
      release(empty_v(older));
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) {
        o[i] *= keep[i / 2 % 2];
      }
      pack();
    }
    {
      const int turn = loaded + tiles - 1;
      const int stage = turn % kStages;
      barrier_wait(full_v(stage), turn / kStages & 1);
      const int there = work.length - (tiles - 1) * kTile;
      if (!L::kIsE4m3 && there < kTile) {
        zero_rows<Cache, kDim>(shared + L::kV + stage * L::kTileBytes, there, thread, 1 + mine);
      }
      issue_out(stage);
      wgmma_wait<0>();
      pin_accumulators(o);
      release(empty_v(stage));
    }
    loaded += tiles;

    // ---- out
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float total = sum[row];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const float inverse = (L::kIsE4m3 ? *p.call.v_scale : 1.0f) / total;
      const int pair = first_row + warp * 16 + row * 8 + lane / 4;
      if (pair < work.rows) {
        const int token = pair / p.group;
        const int head = work.kv_head * p.group + pair % p.group;
        auto* out = static_cast<__nv_bfloat16*>(p.call.out) +
                    (static_cast<int64_t>(work.first + token) * p.call.heads + head) * kDim +
                    2 * (lane % 4);
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i) {
          *reinterpret_cast<uint32_t*>(out + i * 8) =
              pack_bf16(o[i * 4 + row * 2] * inverse, o[i * 4 + row * 2 + 1] * inverse);
        }
      }
    }
  }
}

// ---- launch ----

CUtensorMap cache_map(const void* cache, const PagedAttention& call, int box_rows) {
  CUtensorMap map;
  const auto columns = static_cast<cuuint64_t>(call.kv_heads * call.head_dim);
  const cuuint64_t sizes[3] = {
      64, columns / 64, static_cast<cuuint64_t>(call.pages * call.page_size)};
  const cuuint64_t strides[2] = {128, columns * 2};
  const cuuint32_t box[3] = {64, 1, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result = tensor_map_encoder()(&map,
                                               CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                               3,
                                               const_cast<void*>(cache),
                                               sizes,
                                               strides,
                                               box,
                                               steps,
                                               CU_TENSOR_MAP_INTERLEAVE_NONE,
                                               CU_TENSOR_MAP_SWIZZLE_128B,
                                               CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS, "tensor map of the KV cache refused: pages ", call.pages);
  return map;
}

template <typename Cache, int kDim>
void launch(const Params& params, cudaStream_t stream) {
  const auto kernel = attention_prefill_sm90<Cache, kDim>;
  constexpr int kBytes = Layout<Cache, kDim>::kBytes;
  static const bool kReady = [&] {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    return true;
  }();
  (void)kReady;
  const PagedAttention& call = params.call;
  // No more tiles than that, however the rows are spread over the sequences.
  const int64_t tiles =
      (static_cast<int64_t>(call.tokens) * params.group / kRows + call.seqs) * call.kv_heads;
  launch_overlapped(
      kernel,
      {.grid = dim3(static_cast<unsigned>(std::min<int64_t>(tiles, multiprocessors()))),
       .threads = kThreads,
       .shared_bytes = kBytes},
      stream,
      params);
}

}  // namespace

void launch_attention_prefill_sm90(const PagedAttention& call, CUstream_st* stream) {
  CHECK(call.page_size >= 8 && (call.page_size & (call.page_size - 1)) == 0, "page size");
  CHECK(call.pages * call.page_size < (int64_t{1} << 31), "slots of the cache beyond 32 bits");
  CHECK(reinterpret_cast<uintptr_t>(call.q) % 16 == 0 && call.q_stride % 8 == 0,
        "rows of q must be 16-byte aligned");
  CHECK(call.counters != nullptr, "counters");
  if (call.tokens == 0 || call.seqs == 0) {
    return;
  }
  Params params{};
  params.call = call;
  params.scale_log2 = call.scale * 1.44269504088896341f;
  params.page_shift = __builtin_ctz(static_cast<unsigned>(call.page_size));
  params.box_rows = std::min(call.page_size, kTile);
  params.group = call.heads / call.kv_heads;
  CHECK(call.head_dim == 64 || call.head_dim == 128, "head_dim ", call.head_dim);
  if (call.k_scale != nullptr) {
    call.head_dim == 128 ? launch<uint8_t, 128>(params, stream)
                         : launch<uint8_t, 64>(params, stream);
    return;
  }
  params.k_map = cache_map(call.k, call, params.box_rows);
  params.v_map = cache_map(call.v, call, params.box_rows);
  call.head_dim == 128 ? launch<__nv_bfloat16, 128>(params, stream)
                       : launch<__nv_bfloat16, 64>(params, stream);
}

}  // namespace nibble::cuda
