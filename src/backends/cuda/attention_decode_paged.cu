// attention_decode_paged: one query row a sequence over a paged KV cache.
//
// Contract: PagedAttention (attention_paged.h), head_dim 64 or 128, up to 16 heads a KV head. Needs
// no plan from the host: the blocks read kv_lens and cut the work themselves, so a captured launch
// serves other lengths. The bits of a row depend on its own KV, its length and the head counts
// only.
//
// Plan: a sequence is cut into at most max_chunks chunks of the same number of tokens, which
// depends on its length alone. The four warps of a block take a chunk's stages (16 or 32 tokens) in
// turn, each with its own ring of cp.async stages, online softmax and accumulators of
// mma.m16n8k16 (the group's heads are the rows). At the end of a chunk they fold their results one
// after another, each into what the warp before left in shared memory, so no warp waits for all;
// the last one folds the chunk into the sum of the chunks before it. Blocks take equal stretches of
// the list of all chunks. A block that begins with chunk 0 of a head folds on; one that begins
// later stores each chunk's FP32 partial. Of the blocks that share a head the last to arrive (a
// counter says so) folds what is stored, in the same order. So the cut between blocks, which
// depends on the batch, cannot show in the bits.
//
// Why cp.async: a row of one KV head is 128 or 256 bytes, and the next one lies kv_heads rows on;
// bulk copies that small are limited by their issue rate.
#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/attention_paged.h"
#include "backends/cuda/cuda_check.h"
#include "backends/cuda/device/attention.cuh"
#include "base/check.h"

namespace nibble::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kStages = 2;
constexpr int kBuffers = 4;        // chunks by which the first warp may be ahead of the last
constexpr int kStageBytes = 4096;  // of K, and of V
constexpr int kBlocksPerSm = 2;
constexpr int kMinChunkShift = 8;   // chunks of 256 tokens at least,
constexpr int kMostChunkShift = 9;  // of 512 at most while that gives no more than max_chunks
constexpr int kChunkOverhead = 48;  // tokens whose reading costs what a chunk costs besides
constexpr float kMinusInfinity = -__builtin_huge_valf();

struct Params {
  PagedAttention call;
  float scale_log2;
  int page_shift;
  int group;
  int chunks_log2;     // a sequence has as many chunks or fewer up to 512 tokens a chunk
  int max_chunks;      // twice that
  uint32_t* counters;  // [blocks]: chunks that are stored of the head begun there
  float2* summary;     // [blocks, max_chunks, group]: maximum (base 2), sum
  float* partial;      // [blocks, max_chunks, group, head_dim]
};

/// How a sequence is cut; a function of its length and the head counts. Chunks are a power of two.
struct Cut {
  int shift;  // of a chunk's tokens
  int count;
  __device__ __forceinline__ int tokens() const { return 1 << shift; }
};

__device__ __forceinline__ Cut cut_of(int length, const Params& p) {
  const int log2 = 32 - __clz(length - 1);  // rounded up
  const int shift = max(max(kMinChunkShift, log2 - p.chunks_log2 - 1),
                        min(kMostChunkShift, log2 - p.chunks_log2));
  return {shift, (length + (1 << shift) - 1) >> shift};
}

// ---- the stretch of a block ----

/// Order of the list: heads, then sequences, then chunks. Blocks that run side by side then read
/// different heads of the same tokens, which lie next to each other.
struct Place {
  int head;
  int sequence;
  int chunk;
};

struct Stretch {
  Place begin;
  Place end;
  int base;         // weight before begin.sequence in its head
  int head_weight;  // of all chunks of one head
  int quota;        // weight a block
  bool by_weight;
};

/// In units of 8 tokens; 1 while there is a block for each chunk.
__device__ __forceinline__ int chunk_weight(int length, const Cut& cut, bool by_weight) {
  return by_weight ? ((cut.count == 1 ? length : cut.tokens()) + kChunkOverhead + 7) / 8 : 1;
}

__device__ __forceinline__ int length_of(const Params& p, int sequence) {
  return sequence < p.call.seqs ? max(p.call.kv_lens[sequence], 0) : 0;
}

/// The first chunk at or after `target` (0 <= target < head_weight) in one head; sets the weight
/// before its sequence. By all lanes of a warp.
__device__ __forceinline__ Place
find_place(const Params& p, int head, int target, bool by_weight, int* base_of_sequence) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int before = 0;
  for (int round = 0;; round += 32) {
    const int length = length_of(p, round + lane);
    const Cut cut = cut_of(length, p);
    const int each = chunk_weight(length, cut, by_weight);
    const int own = cut.count * each;
    int upto = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, upto, step);
      upto += lane >= step ? other : 0;
    }
    const unsigned past = __ballot_sync(~0u, before + upto > target);
    if (past == 0 && round + 32 < p.call.seqs) {
      before += __shfl_sync(~0u, upto, 31);
      continue;
    }
    int base = before + upto - own;
    int sequence = round + lane;
    int chunk = target - base;
    if (by_weight) {
      chunk =
          static_cast<int>(static_cast<unsigned>(chunk + each - 1) / static_cast<unsigned>(each));
    }
    if (chunk >= cut.count) {  // it begins with the next sequence
      chunk = 0;
      ++sequence;
      base += own;
    }
    const int from = past != 0 ? __ffs(static_cast<int>(past)) - 1 : 31;
    Place place{head, __shfl_sync(~0u, sequence, from), __shfl_sync(~0u, chunk, from)};
    *base_of_sequence = __shfl_sync(~0u, base, from);
    if (place.sequence >= p.call.seqs) {
      place = {head + 1, 0, 0};
      *base_of_sequence = 0;
    }
    return place;
  }
}

/// Every warp finds its block's stretch by itself; false: the block has nothing to do.
__device__ __forceinline__ bool find_stretch(const Params& p, Stretch& stretch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int chunks = 0;
  int weight = 0;
#pragma unroll 1
  for (int round = 0; round < p.call.seqs; round += 32) {
    const int length = length_of(p, round + lane);
    const Cut cut = cut_of(length, p);
    chunks += cut.count;
    weight += cut.count * chunk_weight(length, cut, true);
  }
  chunks = __reduce_add_sync(~0u, chunks);
  const int blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  stretch.by_weight = chunks * p.call.kv_heads > blocks;
  if (!stretch.by_weight) {
    stretch.head_weight = chunks;
    stretch.quota = 1;
  } else {
    stretch.head_weight = __reduce_add_sync(~0u, weight);
    stretch.quota =
        static_cast<int>(static_cast<unsigned>(stretch.head_weight * p.call.kv_heads + blocks - 1) /
                         static_cast<unsigned>(blocks));
  }
  const int total = stretch.head_weight * p.call.kv_heads;
  const int first = stretch.quota * block;
  if (first >= total) {
    return false;
  }
  // One copy of the code for both ends; the second is not needed where a block has one chunk.
#pragma unroll 1
  for (int side = 0;; ++side) {
    const int at = first + side * stretch.quota;
    const int head =
        static_cast<int>(static_cast<unsigned>(at) / static_cast<unsigned>(stretch.head_weight));
    int base = 0;
    Place place{p.call.kv_heads, 0, 0};
    if (at < total) {
      place = find_place(p, head, at - head * stretch.head_weight, stretch.by_weight, &base);
    }
    if (side == 1) {
      stretch.end = place;
      break;
    }
    stretch.begin = place;
    stretch.base = base;
    if (!stretch.by_weight) {
      stretch.end = {place.head, place.sequence, place.chunk + 1};
      break;
    }
  }
  return true;
}

// ---- walking it ----

/// Chunks of a stretch one after another. Sequences of length 0 have none.
struct Walk {
  Place at;
  int length;
  Cut cut;

  __device__ __forceinline__ bool done(const Place& end) const {
    return at.head > end.head ||
           (at.head == end.head &&
            (at.sequence > end.sequence || (at.sequence == end.sequence && at.chunk >= end.chunk)));
  }
  __device__ __forceinline__ void load(const Params& p, const Place& end) {
    while (!done(end)) {
      length = p.call.kv_lens[at.sequence];
      if (length > 0) {
        cut = cut_of(length, p);
        return;
      }
      next_sequence(p);
    }
  }
  __device__ __forceinline__ void next_sequence(const Params& p) {
    at.chunk = 0;
    if (++at.sequence == p.call.seqs) {
      at.sequence = 0;
      ++at.head;
    }
  }
  __device__ __forceinline__ void next(const Params& p, const Place& end) {
    if (++at.chunk == cut.count) {
      next_sequence(p);
      load(p, end);
    }
  }
  __device__ __forceinline__ int begin() const { return at.chunk << cut.shift; }
  __device__ __forceinline__ int tokens() const { return min(cut.tokens(), length - begin()); }
};

/// Rows of empty sequences are zeros.
template <int kDim>
__device__ void clear_empty_rows(const Params& p) {
  for (int s = static_cast<int>(blockIdx.x); s < p.call.seqs; s += static_cast<int>(gridDim.x)) {
    if (p.call.kv_lens[s] <= 0) {
      wait_for_previous_kernel();
      auto* out =
          static_cast<uint32_t*>(p.call.out) + static_cast<int64_t>(s) * p.call.heads * kDim / 2;
      for (int i = static_cast<int>(threadIdx.x); i < p.call.heads * kDim / 2; i += kThreads) {
        out[i] = 0;
      }
    }
  }
}

/// Folds a later part into an earlier one: both kernels must do this with the same instructions.
template <int kCount>
__device__ __forceinline__ void fold(float& top,
                                     float& sum,
                                     float (&values)[kCount],
                                     float later_top,
                                     float later_sum,
                                     const float (&later)[kCount]) {
  const float highest = fmaxf(top, later_top);
  const float keep = exp2_fast(top - highest);
  const float add = exp2_fast(later_top - highest);
  top = highest;
  sum = __fmaf_rn(later_sum, add, __fmul_rn(sum, keep));
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = __fmaf_rn(later[i], add, __fmul_rn(values[i], keep));
  }
}

template <int kCount>
__device__ __forceinline__ void store_row(__nv_bfloat16* out,
                                          const float (&values)[kCount],
                                          float sum) {
  static_assert(kCount == 4);
  const float inverse = 1.0f / sum;
  *reinterpret_cast<uint2*>(out) = make_uint2(pack_bf16(values[0] * inverse, values[1] * inverse),
                                              pack_bf16(values[2] * inverse, values[3] * inverse));
}

template <int kDim>
__device__ __forceinline__ __nv_bfloat16* out_row(const Params& p, const Place& at, int head) {
  return static_cast<__nv_bfloat16*>(p.call.out) +
         (static_cast<int64_t>(at.sequence) * p.call.heads + at.head * p.group + head) * kDim;
}

// ---- heads that several blocks share ----

/// After a block has stored its part of a head, `mine` of `count` chunks: the last block to come
/// here folds the parts. Slot 0 of `first_block` holds what that block folded: the chunks that
/// begin less than `room` after the head's first. By all threads.
template <int kDim>
__device__ void finish_if_last(
    const Params& p, const Place& at, int count, int mine, int first_block, int room, int each) {
  constexpr int kOwn = 4;
  constexpr int kBatch = 8;  // parts whose loads are in flight
  __shared__ int is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto before = add_acquire_release(p.counters + first_block, static_cast<uint32_t>(mine));
    is_last = static_cast<int>(before) + mine == count ? 1 : 0;
    if (is_last != 0) {
      p.counters[first_block] = 0;
    }
  }
  __syncthreads();
  if (is_last == 0) {
    return;
  }
  const int folded = (room + each - 1) / each;
  const int64_t first = static_cast<int64_t>(first_block) * p.max_chunks;
  for (int i = static_cast<int>(threadIdx.x) * kOwn; i < p.group * kDim; i += kThreads * kOwn) {
    const int head = i / kDim;
    const float* partial = p.partial + first * p.group * kDim + i;
    const float2* summary = p.summary + first * p.group + head;
    const float4 begin = __ldcg(reinterpret_cast<const float4*>(partial));
    float values[kOwn] = {begin.x, begin.y, begin.z, begin.w};
    float2 all = __ldcg(summary);
    for (int chunk = folded; chunk < count; chunk += kBatch) {
      float4 later[kBatch];
      float2 of_chunk[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int64_t from = min(chunk + j, count - 1);
        later[j] = __ldcg(reinterpret_cast<const float4*>(partial + from * p.group * kDim));
        of_chunk[j] = __ldcg(summary + from * p.group);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (chunk + j < count) {
          const float v[kOwn] = {later[j].x, later[j].y, later[j].z, later[j].w};
          fold(all.x, all.y, values, of_chunk[j].x, of_chunk[j].y, v);
        }
      }
    }
    store_row(out_row<kDim>(p, at, head) + i % kDim, values, all.y);
  }
}

// ---- the kernel ----

/// kRows: 8 or 16, at least the group.
template <int kDim, int kRows>
struct Layout {
  static constexpr int kStageTokens = kStageBytes / (kDim * 2);
  static constexpr int kRing = kWarps * kStages * 2 * kStageBytes;
  static constexpr int kRowsBytes = kRows * kDim * 4;
  static constexpr int kChunk = kRing;  // kBuffers of [rows, head_dim] f32: warps so far
  static constexpr int kHead = kChunk + kBuffers * kRowsBytes;       // one: chunks so far
  static constexpr int kSums = kHead + kRowsBytes;                   // as many of [rows] float2
  static constexpr int kTurns = kSums + (kBuffers + 1) * kRows * 8;  // barriers
  static constexpr int kBytes = kTurns + kBuffers * kWarps * 8;
};

/// A warp's result: rows lane / 4 and, with 16 rows, 8 more; columns 8 i + 2 (lane % 4) + {0, 1}.
template <int kDim, int kRows>
struct Result {
  static constexpr int kHalves = kRows / 8;
  float o[kDim / 8][4];
  float top[kHalves];
  float sum[kHalves];

  // Rows are a multiple of all banks apart: columns are spread.
  static __device__ __forceinline__ float2* place(float* rows, int row, int i) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return reinterpret_cast<float2*>(rows + row * kDim + (i ^ (row & 7)) * 8 + 2 * (lane % 4));
  }
  __device__ __forceinline__ void store(float* rows, float2* sums, int group) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = half * 8 + lane / 4;
      if (row < group) {
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i) {
          *place(rows, row, i) = make_float2(o[i][half * 2], o[i][half * 2 + 1]);
        }
        sums[row] = make_float2(top[half], sum[half]);
      }
    }
  }
  /// Becomes the fold of what is stored and this.
  __device__ __forceinline__ void fold_after(float* rows, const float2* sums, int group) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = half * 8 + lane / 4;
      if (row < group) {
        float earlier_top = sums[row].x;
        float earlier_sum = sums[row].y;
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i) {
          const float2 v = *place(rows, row, i);
          float earlier[2] = {v.x, v.y};
          const float later[2] = {o[i][half * 2], o[i][half * 2 + 1]};
          float t = earlier_top;
          float u = earlier_sum;
          fold(t, u, earlier, top[half], sum[half], later);
          o[i][half * 2] = earlier[0];
          o[i][half * 2 + 1] = earlier[1];
        }
        float none[1] = {0.0f};
        fold(earlier_top, earlier_sum, none, top[half], sum[half], none);
        top[half] = earlier_top;
        sum[half] = earlier_sum;
      }
    }
  }
};

template <int kDim, int kRows>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) attention_decode_paged(
    const __grid_constant__ Params p) {
  using L = Layout<kDim, kRows>;
  constexpr int kTokens = L::kStageTokens;  // a stage
  constexpr int kTiles = kTokens / 8;       // of eight tokens
  constexpr int kSteps = kDim / 16;
  constexpr int kSegments = kDim / 8;  // of 16 bytes a row
  constexpr int kLanesRows = 32 / kSegments;
  constexpr int kPasses = kRows / 8;

  extern __shared__ __align__(128) uint8_t ring[];
  auto* chunk_rows = reinterpret_cast<float*>(ring + L::kChunk);
  auto* head_rows = reinterpret_cast<float*>(ring + L::kHead);
  auto* chunk_sums = reinterpret_cast<float2*>(ring + L::kSums);
  auto* head_sums = chunk_sums + kBuffers * kRows;
  const uint32_t turns = shared_address(ring) + L::kTurns;  // of a buffer and warp: it has stored

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int block = static_cast<int>(blockIdx.x);
  allow_next_kernel();
  if (thread == 0) {
    for (int i = 0; i < kBuffers * kWarps; ++i) {
      barrier_init(turns + i * 8, 32);
    }
  }
  __syncthreads();

  Stretch stretch;
  if (!find_stretch(p, stretch)) {
    clear_empty_rows<kDim>(p);
    return;
  }
  const Place end = stretch.end;

  // ---- copies
  const uint32_t own_ring = shared_address(ring) + warp * (kStages * 2 * kStageBytes);
  const int lane_row = lane / kSegments;
  const int lane_segment = lane % kSegments;
  const int64_t token_bytes = static_cast<int64_t>(p.call.kv_heads) * kDim * 2;
  const int page_mask = p.call.page_size - 1;

  Walk ahead{stretch.begin, 0, {}};
  ahead.load(p, end);
  Walk walk = ahead;
  int ahead_token = warp * kTokens;  // in its chunk
  bool ahead_live = !ahead.done(end);
  const auto settle = [&] {  // on to a chunk that has a stage for this warp
    while (ahead_live && ahead_token >= ahead.tokens()) {
      ahead.next(p, end);
      ahead_token = warp * kTokens;
      ahead_live = !ahead.done(end);
    }
  };
  settle();
  bool waited = false;  // for the kernel that writes this step's keys, values and queries
  const auto copy_stage = [&](int slot) {
    if (ahead_live) {
      const int first = ahead.begin() + ahead_token;
      const int32_t* table = p.call.page_table + ahead.at.sequence * p.call.table_stride;
      const uint32_t to = own_ring + slot * (2 * kStageBytes);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        // Eight tokens lie in one page.
        const int position = first + tile * 8;
        const int inside = min(position, ahead.length - 1);
        const int page = __ldg(table + (inside >> p.page_shift));
        const int64_t token =
            (static_cast<int64_t>(page) << p.page_shift) + (inside & page_mask & ~7);
        const int64_t offset = token * token_bytes + ahead.at.head * (kDim * 2) + lane_segment * 16;
        const auto* k = static_cast<const uint8_t*>(p.call.k) + offset;
        const auto* v = static_cast<const uint8_t*>(p.call.v) + offset;
#pragma unroll
        for (int i = 0; i < 8 / kLanesRows; ++i) {
          const int row = i * kLanesRows + lane_row;
          const bool valid = position + row < ahead.length;
          const uint32_t at =
              to + (tile * 8 + row) * (kDim * 2) + ((lane_segment ^ row) & (kSegments - 1)) * 16;
          copy_async_16(at, k + row * token_bytes, valid);
          copy_async_16(at + kStageBytes, v + row * token_bytes, valid);
        }
      }
      ahead_token += kWarps * kTokens;
      settle();
    }
    copy_async_commit();
  };
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) {
    if (!waited && (!ahead_live || ahead.begin() + ahead_token + kTokens >= ahead.length)) {
      wait_for_previous_kernel();
      waited = true;
    }
    copy_stage(i);
  }
  if (!waited) {
    wait_for_previous_kernel();
  }

  // ---- addresses of the matrices in a stage
  const int k_row = (lane & 7) + (lane >= 16 ? 8 : 0);
  const int k_half = (lane >> 3) & 1;
  const int v_row = (lane & 7) + (lane & 8);
  const int v_half = lane >> 4;

  uint32_t q[kSteps][kRows / 4];
  int q_sequence = -1;
  int q_head = -1;
  bool folds = false;  // this block began with the head's chunk 0
  // Weight before chunk 0 of the head that is walked, and before the chunk.
  int head_base = stretch.begin.head * stretch.head_weight + stretch.base;
  int position = head_base;
  if (stretch.begin.chunk > 0) {
    position += stretch.begin.chunk * chunk_weight(walk.length, walk.cut, stretch.by_weight);
  }
  int first_block = stretch.by_weight ? head_base / stretch.quota : head_base;  // has chunk 0
  int mine = 0;  // chunks of this head in this block
  int slot = 0;
  for (uint32_t turn = 0; !walk.done(end); ++turn) {
    const Place at = walk.at;
    const int tokens = walk.tokens();
    const int begin = walk.begin();
    const int length = walk.length;
    if (at.sequence != q_sequence || at.head != q_head) {
      q_sequence = at.sequence;
      q_head = at.head;
      const auto* row = static_cast<const __nv_bfloat16*>(p.call.q) +
                        at.sequence * p.call.q_stride +
                        static_cast<int64_t>(at.head) * p.group * kDim + 2 * (lane % 4);
#pragma unroll
      for (int half = 0; half < kPasses; ++half) {
        const int head = lane / 4 + half * 8;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            q[step][i * kPasses + half] =
                head < p.group
                    ? *reinterpret_cast<const uint32_t*>(row + head * kDim + step * 16 + i * 8)
                    : 0;
          }
        }
      }
    }

    Result<kDim, kRows> result;
    auto& o = result.o;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0f;
    }
#pragma unroll
    for (int half = 0; half < kPasses; ++half) {
      result.top[half] = kMinusInfinity;
      result.sum[half] = 0.0f;
    }
    for (int token = warp * kTokens; token < tokens; token += kWarps * kTokens) {
      copy_async_wait<kStages - 2>();
      __syncwarp();
      // All lanes are done with the stage before this one: fill it.
      copy_stage(slot == 0 ? kStages - 1 : slot - 1);
      const uint32_t k_stage = own_ring + slot * (2 * kStageBytes);
      const uint32_t v_stage = k_stage + kStageBytes;
      float s[kTiles][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        s[tile][0] = s[tile][1] = s[tile][2] = s[tile][3] = 0.0f;
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t a[4];
        a[0] = q[step][0];
        a[1] = kPasses == 2 ? q[step][1] : 0;
        a[2] = q[step][kPasses];
        a[3] = kPasses == 2 ? q[step][kPasses + kPasses - 1] : 0;
#pragma unroll
        for (int pair = 0; pair < kTiles / 2; ++pair) {
          const int segment = (step * 2 + k_half) ^ (k_row & 7);
          const uint4 b = load_matrices(k_stage + (pair * 16 + k_row) * (kDim * 2) + segment * 16);
          mma_m16n8k16(s[pair * 2], a, b.x, b.y);
          mma_m16n8k16(s[pair * 2 + 1], a, b.z, b.w);
        }
      }
      const int left = length - begin - token;  // tokens of this stage that exist, or more
      if (left < kTokens) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (tile * 8 + 2 * (lane % 4) + i % 2 >= left) {
              s[tile][i] = kMinusInfinity;
            }
          }
        }
      }
      float keep[kPasses];
#pragma unroll
      for (int half = 0; half < kPasses; ++half) {
        float highest = fmaxf(s[0][half * 2], s[0][half * 2 + 1]);
#pragma unroll
        for (int tile = 1; tile < kTiles; ++tile) {
          highest = fmaxf(highest, fmaxf(s[tile][half * 2], s[tile][half * 2 + 1]));
        }
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
        highest = fmaxf(result.top[half], highest * p.scale_log2);
        keep[half] = exp2_fast(result.top[half] - highest);
        result.top[half] = highest;
        float total = 0.0f;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& x = s[tile][half * 2 + i];
            x = exp2_fast(__fmaf_rn(x, p.scale_log2, -highest));
            total += x;
          }
        }
        result.sum[half] = __fmaf_rn(result.sum[half], keep[half], total);
      }
      bool moved = keep[0] != 1.0f;
      if constexpr (kPasses == 2) {
        moved = moved || keep[1] != 1.0f;
      }
      if (__any_sync(~0u, moved)) {
#pragma unroll
        for (int i = 0; i < kDim / 8; ++i) {
          o[i][0] *= keep[0];
          o[i][1] *= keep[0];
          if constexpr (kPasses == 2) {
            o[i][2] *= keep[1];
            o[i][3] *= keep[1];
          }
        }
      }
#pragma unroll
      for (int pair = 0; pair < kTiles / 2; ++pair) {
        uint32_t a[4];
        a[0] = pack_bf16(s[pair * 2][0], s[pair * 2][1]);
        a[2] = pack_bf16(s[pair * 2 + 1][0], s[pair * 2 + 1][1]);
        a[1] = kPasses == 2 ? pack_bf16(s[pair * 2][2], s[pair * 2][3]) : 0;
        a[3] = kPasses == 2 ? pack_bf16(s[pair * 2 + 1][2], s[pair * 2 + 1][3]) : 0;
#pragma unroll
        for (int i = 0; i < kDim / 16; ++i) {
          const int segment = (i * 2 + v_half) ^ (v_row & 7);
          const uint4 b =
              load_matrices_transposed(v_stage + (pair * 16 + v_row) * (kDim * 2) + segment * 16);
          mma_m16n8k16(o[i * 2], a, b.x, b.y);
          mma_m16n8k16(o[i * 2 + 1], a, b.z, b.w);
        }
      }
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }

    // ---- the chunk's result: warps in turn
#pragma unroll
    for (int half = 0; half < kPasses; ++half) {
      result.sum[half] += __shfl_xor_sync(~0u, result.sum[half], 1);
      result.sum[half] += __shfl_xor_sync(~0u, result.sum[half], 2);
    }
    const bool begins = at.chunk == 0;
    if (begins) {
      folds = true;
      first_block = block;
      head_base = position;
      mine = 0;
    }
    const Cut cut = walk.cut;
    const int each = chunk_weight(length, cut, stretch.by_weight);
    position += each;
    ++mine;
    walk.next(p, end);

    const bool last = at.chunk + 1 == cut.count;
    const bool leaves = walk.done(end);
    const bool stores = !folds || (leaves && !last);
    // The first warp waits until the last one has taken the chunk before from this buffer.
    const uint32_t buffer = turn % kBuffers;
    const uint32_t parity = turn / kBuffers & 1;
    float* buffer_rows = chunk_rows + buffer * (kRows * kDim);
    float2* buffer_sums = chunk_sums + buffer * kRows;
    const uint32_t buffer_turns = turns + buffer * (kWarps * 8);
    barrier_wait(buffer_turns + (warp + kWarps - 1) % kWarps * 8, warp == 0 ? parity ^ 1 : parity);
    if (warp > 0) {
      result.fold_after(buffer_rows, buffer_sums, p.group);
    }
    if (warp < kWarps - 1) {
      result.store(buffer_rows, buffer_sums, p.group);
    }
    barrier_arrive(buffer_turns + warp * 8);
    if (warp == kWarps - 1) {
      if (folds && !begins) {
        result.fold_after(head_rows, head_sums, p.group);
      }
      if (folds && !last && !leaves) {
        result.store(head_rows, head_sums, p.group);
      } else {
        const int64_t place =
            static_cast<int64_t>(first_block) * p.max_chunks + (folds ? 0 : at.chunk);
#pragma unroll
        for (int half = 0; half < kPasses; ++half) {
          const int head = half * 8 + lane / 4;
          if (head < p.group && stores) {
            float* to = p.partial + (place * p.group + head) * kDim + 2 * (lane % 4);
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i) {
              *reinterpret_cast<float2*>(to + i * 8) =
                  make_float2(o[i][half * 2], o[i][half * 2 + 1]);
            }
            p.summary[place * p.group + head] = make_float2(result.top[half], result.sum[half]);
          } else if (head < p.group) {
            const float inverse = 1.0f / result.sum[half];
            __nv_bfloat16* to = out_row<kDim>(p, at, head) + 2 * (lane % 4);
#pragma unroll
            for (int i = 0; i < kDim / 8; ++i) {
              *reinterpret_cast<uint32_t*>(to + i * 8) =
                  pack_bf16(o[i][half * 2] * inverse, o[i][half * 2 + 1] * inverse);
            }
          }
        }
      }
    }
    if (stores && (last || leaves)) {
      finish_if_last<kDim>(
          p, at, cut.count, mine, first_block, (first_block + 1) * stretch.quota - head_base, each);
    }
    if (last) {
      folds = false;
    }
  }
  clear_empty_rows<kDim>(p);
}

// ---- launch ----

int num_blocks() {
  static const int kCount = [] {
    int device = 0;
    int count = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count * kBlocksPerSm;
  }();
  return kCount;
}

/// Enough chunks for every multiprocessor to have work when one sequence runs alone.
int chunks_log2(int heads, int kv_heads) { return kv_heads >= 8 || heads / kv_heads > 8 ? 4 : 5; }

size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

template <int kDim, int kRows>
void launch(const Params& params, cudaStream_t stream) {
  using L = Layout<kDim, kRows>;
  const auto kernel = attention_decode_paged<kDim, kRows>;
  static const bool kReady = [&] {
    CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, L::kBytes));
    return true;
  }();
  (void)kReady;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_blocks()));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = L::kBytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params));
}

}  // namespace

int64_t attention_decode_counters() { return num_blocks(); }

size_t attention_decode_workspace_bytes(int heads, int kv_heads, int head_dim) {
  const auto blocks = static_cast<size_t>(num_blocks());
  const size_t rows =
      blocks * (size_t{2} << chunks_log2(heads, kv_heads)) * static_cast<size_t>(heads / kv_heads);
  return round_up(rows * 8) + rows * static_cast<size_t>(head_dim) * 4;
}

void launch_attention_decode_paged(const PagedAttention& call, CUstream_st* stream) {
  CHECK(call.page_size >= 8 && (call.page_size & (call.page_size - 1)) == 0, "page size");
  CHECK(call.heads % call.kv_heads == 0 && call.heads / call.kv_heads <= kMaxGroup, "group");
  CHECK(call.counters != nullptr, "counters");
  if (call.seqs == 0) {
    return;
  }
  Params params{};
  params.call = call;
  params.scale_log2 = call.scale * 1.44269504088896341f;
  params.page_shift = __builtin_ctz(static_cast<unsigned>(call.page_size));
  params.group = call.heads / call.kv_heads;
  params.chunks_log2 = chunks_log2(call.heads, call.kv_heads);
  params.max_chunks = 2 << params.chunks_log2;
  const auto blocks = static_cast<size_t>(num_blocks());
  const size_t rows = blocks * static_cast<size_t>(params.max_chunks * params.group);
  auto* at = static_cast<uint8_t*>(call.workspace);
  params.counters = call.counters;
  params.summary = reinterpret_cast<float2*>(at);
  at += round_up(rows * 8);
  params.partial = reinterpret_cast<float*>(at);
  const bool few = params.group <= 8;
  CHECK(call.head_dim == 64 || call.head_dim == 128, "head_dim ", call.head_dim);
  if (call.head_dim == 128) {
    few ? launch<128, 8>(params, stream) : launch<128, 16>(params, stream);
  } else {
    few ? launch<64, 8>(params, stream) : launch<64, 16>(params, stream);
  }
}

}  // namespace nibble::cuda
