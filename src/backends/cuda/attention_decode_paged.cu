// attention_decode_paged: one query row a sequence over a paged KV cache.
//
// Contract: PagedAttention (attention_paged.h), head_dim 64 or 128, up to 16 heads a KV head, bf16
// or e4m3 keys and values. Few sequences go to attention_decode_few.cu, with the same bits. Needs
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
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/attention_decode.cuh"
#include "backends/cuda/cuda_check.h"
#include "backends/cuda/launch.cuh"
#include "base/check.h"

namespace nibble::cuda {

namespace {

using Params = DecodeParams;

constexpr int kWarps = kDecodeWarps;
constexpr int kThreads = kDecodeThreads;
constexpr int kStages = 2;
constexpr int kBuffers = 4;      // chunks by which the first warp may be ahead of the last
constexpr int kFewChunks = 512;  // of all sequences, if long; up to there the kernel for few runs
constexpr int kChunkOverhead = 48;  // tokens whose reading costs what a chunk costs besides

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

// ---- the kernel ----

/// kRows: 8 or 16, at least the group.
template <int kDim, int kRows>
struct Layout {
  static constexpr int kRing = kWarps * kStages * 2 * kStageBytes;
  static constexpr int kRowsBytes = kRows * kDim * 4;
  static constexpr int kChunk = kRing;  // kBuffers of [rows, head_dim] f32: warps so far
  static constexpr int kHead = kChunk + kBuffers * kRowsBytes;       // one: chunks so far
  static constexpr int kSums = kHead + kRowsBytes;                   // as many of [rows] float2
  static constexpr int kTurns = kSums + (kBuffers + 1) * kRows * 8;  // barriers
  static constexpr int kBytes = kTurns + kBuffers * kWarps * 8;
};

template <typename Cache, int kDim, int kRows>
__global__ void __launch_bounds__(kThreads, kDecodeBlocksPerSm) attention_decode_paged(
    const __grid_constant__ Params p) {
  using L = Layout<kDim, kRows>;
  using Stage = DecodeStage<Cache, kDim>;
  constexpr int kTokens = Stage::kTokens;
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
      Stage::copy(p,
                  table,
                  ahead.at.head,
                  first,
                  ahead.length,
                  ahead.length,
                  own_ring + slot * (2 * kStageBytes));
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

  const float2 scales = scales_of<Cache>(p);
  Queries<Cache, kDim, kRows> q;
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
      q.load(static_cast<const __nv_bfloat16*>(p.call.q) + at.sequence * p.call.q_stride +
                 static_cast<int64_t>(at.head) * p.group * kDim,
             kDim,
             p.group);
    }

    Result<Cache, kDim, kRows> result;
    result.clear();
    for (int token = warp * kTokens; token < tokens; token += kWarps * kTokens) {
      copy_async_wait<kStages - 2>();
      __syncwarp();
      // All lanes are done with the stage before this one: fill it.
      copy_stage(slot == 0 ? kStages - 1 : slot - 1);
      attend_stage(
          q, own_ring + slot * (2 * kStageBytes), length - begin - token, scales.x, result);
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }

    // ---- the chunk's result: warps in turn
    result.add_up();
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
            float* to = p.partial + (place * p.group + head) * kDim;
#pragma unroll
            for (int i = 0; i < result.kPieces; ++i) {
              result.store(to + result.column(i), i, half);
            }
            p.summary[place * p.group + head] = make_float2(result.top[half], result.sum[half]);
          } else if (head < p.group) {
            const float inverse = scales.y / result.sum[half];
            __nv_bfloat16* to = out_row<kDim>(p, at.sequence, at.head * p.group + head);
#pragma unroll
            for (int i = 0; i < result.kPieces; ++i) {
#pragma unroll
              for (int j = 0; j < result.kPiece; j += 2) {
                *reinterpret_cast<uint32_t*>(to + result.column(i) + j) =
                    pack_bf16(result.at(i, half, j) * inverse, result.at(i, half, j + 1) * inverse);
              }
            }
          }
        }
      }
    }
    if (stores && (last || leaves)) {
      const int room = (first_block + 1) * stretch.quota - head_base;
      finish_if_last<kDim>(p,
                           at.sequence,
                           at.head,
                           cut.count,
                           mine,
                           first_block,
                           (room + each - 1) / each,
                           scales.y);
    }
    if (last) {
      folds = false;
    }
  }
  clear_empty_rows<kDim>(p);
}

// ---- launch ----

int num_blocks() { return multiprocessors() * kDecodeBlocksPerSm; }

/// Enough chunks for every multiprocessor to have work when one sequence runs alone.
int chunks_log2(int heads, int kv_heads) { return kv_heads >= 8 || heads / kv_heads > 8 ? 4 : 5; }

size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }

template <typename Cache, int kDim, int kRows>
void launch(const Params& params, cudaStream_t stream) {
  using L = Layout<kDim, kRows>;
  const auto kernel = attention_decode_paged<Cache, kDim, kRows>;
  static const bool kReady = [&] {
    CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, L::kBytes));
    return true;
  }();
  (void)kReady;
  launch_overlapped(kernel,
                    {.grid = dim3(static_cast<unsigned>(num_blocks())),
                     .threads = kThreads,
                     .shared_bytes = L::kBytes},
                    stream,
                    params);
}

}  // namespace

bool attention_decode_is_few(int seqs, int heads, int kv_heads) {
  return heads / kv_heads <= kMaxGroup &&
         seqs * kv_heads * (2 << chunks_log2(heads, kv_heads)) <= kFewChunks;
}

int64_t attention_decode_counters() { return num_blocks(); }

size_t attention_decode_workspace_bytes(int heads, int kv_heads, int head_dim) {
  const auto blocks = static_cast<size_t>(num_blocks());
  const size_t rows =
      blocks * (size_t{2} << chunks_log2(heads, kv_heads)) * static_cast<size_t>(heads / kv_heads);
  return round_up(rows * 8) + rows * static_cast<size_t>(head_dim) * 4;
}

DecodeParams decode_params_of(const PagedAttention& call) {
  DecodeParams params{};
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
  return params;
}

void launch_attention_decode_paged(const PagedAttention& call, CUstream_st* stream) {
  CHECK(call.page_size >= 8 && (call.page_size & (call.page_size - 1)) == 0, "page size");
  CHECK(call.heads % call.kv_heads == 0 && call.heads / call.kv_heads <= kMaxGroup, "group");
  CHECK(call.counters != nullptr, "counters");
  if (call.seqs == 0) {
    return;
  }
  const Params params = decode_params_of(call);
  CHECK(call.head_dim == 64 || call.head_dim == 128, "head_dim ", call.head_dim);
  if (attention_decode_is_few(call.seqs, call.heads, call.kv_heads)) {
    launch_attention_decode_few(params, stream);
    return;
  }
  CHECK(call.prepare.positions == nullptr, "many sequences come prepared");
  const auto by_rows = [&](auto cache, auto dim) {
    using Cache = decltype(cache);
    constexpr int kDim = decltype(dim)::value;
    params.group <= 8 ? launch<Cache, kDim, 8>(params, stream)
                      : launch<Cache, kDim, 16>(params, stream);
  };
  const auto by_dim = [&](auto cache) {
    call.head_dim == 128 ? by_rows(cache, std::integral_constant<int, 128>{})
                         : by_rows(cache, std::integral_constant<int, 64>{});
  };
  call.k_scale != nullptr ? by_dim(uint8_t{}) : by_dim(__nv_bfloat16{});
}

}  // namespace nibble::cuda
