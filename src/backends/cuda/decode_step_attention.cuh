#pragma once
// Decode attention inside decode_step_sm90: a chunk of a KV head by all sixteen warps of a block.
// The bits of attention_decode_few.cuh, where four warps take a chunk: warp w the stages w, w + 4,
// ... one after another. Such a chain is four warps here. Each scores one of the chain's stages, so
// that the scores of all stages in shared memory are there at once; then each takes all of them, in
// order, into its quarter of the columns. What is left one after another is short.

#include <cstdint>

#include <cuda_bf16.h>

#include "backends/cuda/attention_decode_few.cuh"
#include "backends/cuda/decode_step_exchange.cuh"
#include "backends/cuda/decode_step_registers.cuh"
#include "backends/cuda/device/ptx.cuh"

namespace nibble::cuda {

inline constexpr int kChainWarps = 4;
inline constexpr int kStepThreads = kDecodeWarps * kChainWarps * 32;

/// The queries, keys and values of a layer, as attention takes them.
template <int kDim>
struct StepQkvRow {
  const uint32_t* pairs;
  __device__ __forceinline__ uint4 load(const DecodeParams& p,
                                        const decode_few::Share& share,
                                        int row,
                                        int at) const {
    const int head = row < p.group
                         ? share.head * p.group + row
                         : p.call.heads + share.head + (row == p.group ? 0 : p.call.kv_heads);
    // The lanes of a half warp that have channels.
    const unsigned lanes = ((1u << (kDim / 8)) - 1) << (threadIdx.x & 16);
    return await_piece(pairs + (head * kDim + at) / 2, lanes);
  }
};

template <int kDim>
struct StepAttendedRow {
  uint32_t* pairs;
  __device__ __forceinline__ void store(
      const DecodeParams& p, int sequence, int head, int column, const uint2& columns) const {
    store_pairs(pairs + (head * kDim + column) / 2, columns);
  }
};

/// What is dealt out to blocks: chunks of KV heads; of an empty sequence the heads.
__device__ __forceinline__ int step_shares(const DecodeParams& p) {
  return p.call.kv_heads * max(decode_few::share_of(p, 0).cut.count, 1);
}

__device__ __forceinline__ void step_block_sync() { named_barrier_sync(2, kStepThreads); }

/// A stage of every chain beside those of its ring, in the place of what products use.
struct StepMoreStages {
  int count;      // of a chain, 0 or 1
  uint32_t keys;  // shared address: kStepMoreBytes of keys and values, the last chain's first
  int scores;     // bytes from the pool, step_more_score_bytes(head_dim)

  __device__ __forceinline__ uint32_t slot(int chain) const {
    return keys + (chain + 1) % kDecodeWarps * (2 * kStageBytes);
  }
};
static_assert(kStepMoreBytes == kDecodeWarps * 2 * kStageBytes);

/// kStages: of a chain's ring, less than kChainWarps.
template <int kDim, int kStages>
struct StepAttention {
  using Cache = __nv_bfloat16;
  using Layout = decode_few::Layout<Cache, kDim, 8, kStages>;
  using Stage = DecodeStage<Cache, kDim>;
  static_assert(kStages < kChainWarps);
  // Scores of a stage: a float2 a lane and tile.
  static constexpr int kScoreBytes = Stage::kTiles * 32 * 8;
  static constexpr int kScores = Layout::kBytes;
  // What no layer changes, and a layer's norms of q and k (bf16): asked for before the rows are
  // there.
  static constexpr int kNorms = kScores + kDecodeWarps * kStages * kScoreBytes;
  static constexpr int kAngles = kNorms + 2 * kDim * 2;  // of the token: f32
  static constexpr int kToken = kAngles + kDim * 4;      // position in kAngles: 0; slot; length
  static constexpr int kPages = kToken + 16;             // of the block's first chunk
  static constexpr int kBytes = kPages + kStepKnownPages * 4;
  static constexpr int kSteps = Stage::kSegments / 2 / kChainWarps;  // of a warp's columns
  static constexpr int kColumns = kDim / 8 / kChainWarps;            // tiles of eight

  int warp, chain, part;
  int stages;     // of a chain that are in shared memory at once
  uint32_t more;  // the chain's last, where it is not one of the ring's
  int more_scores;

  __device__ __forceinline__ StepAttention(int own_warp, const StepMoreStages& own_more)
      : warp(own_warp),
        chain(own_warp / kChainWarps),
        part(own_warp % kChainWarps),
        stages(kStages + own_more.count),
        more(own_more.slot(chain)),
        more_scores(own_more.scores + chain * kScoreBytes) {}

  __device__ __forceinline__ void chain_sync() const {
    named_barrier_sync(3 + chain, kChainWarps * 32);
  }
  __device__ __forceinline__ uint32_t slot(uint32_t shared, int i) const {
    return i < kStages ? shared + chain * Layout::kWarpRing + i * (2 * kStageBytes) : more;
  }
  /// Where a stage's scores are, from the pool.
  __device__ __forceinline__ int scores(int i) const {
    return i < kStages ? kScores + (chain * kStages + i) * kScoreBytes : more_scores;
  }
  /// First token, in the chunk, of the i-th stage of the chain.
  __device__ __forceinline__ int token_of(int i) const {
    return (i * kDecodeWarps + chain) * Stage::kTokens;
  }

  /// The sequence's pages, as far as the chunk needs them.
  static __device__ __forceinline__ const int32_t* pages(const DecodeParams& p,
                                                         const decode_few::Share& share,
                                                         uint8_t* memory,
                                                         bool first) {
    const int first_page = share.begin() >> p.page_shift;
    return first && share.cut.tokens() <= kStepKnownPages << p.page_shift
               ? reinterpret_cast<const int32_t*>(memory + kPages) - first_page
               : p.call.page_table;
  }

  /// Whether this warp's stage is where x of a product was until now (StepMoreStages).
  __device__ __forceinline__ bool is_late() const {
    return part == kStages && chain == kDecodeWarps - 1;
  }
  /// Asks for the keys, or the values, of this warp's stage of a round, where there is one: a group
  /// of copies.
  template <bool kKeys>
  __device__ __forceinline__ void ask(const DecodeParams& p,
                                      const decode_few::Share& share,
                                      const int32_t* pages,
                                      uint32_t shared,
                                      int round) const {
    const int token = token_of(round * stages + part);
    if (part < stages && token < share.tokens()) {
      Stage::template copy<kKeys, !kKeys>(p,
                                          pages,
                                          share.head,
                                          share.begin() + token,
                                          share.length - 1,  // the new one comes otherwise
                                          share.length,
                                          slot(shared, part));
    }
    copy_async_commit();
  }
  __device__ __forceinline__ void ask_first(const DecodeParams& p,
                                            const decode_few::Share& share,
                                            const int32_t* pages,
                                            uint32_t shared) const {
    ask<true>(p, share, pages, shared, 0);
    ask<false>(p, share, pages, shared, 0);
  }

  /// Attends to a chunk whose first round has been asked for. By all threads of the block; shared
  /// memory is free again after the next step_block_sync().
  __device__ __forceinline__ void run(const DecodeParams& p,
                                      const decode_few::Share& share,
                                      const int32_t* pages,
                                      uint8_t* memory,
                                      const StepQkvRow<kDim>& source,
                                      const StepAttendedRow<kDim>& target) const {
    const uint32_t shared = shared_address(memory);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (threadIdx.x < kDecodeThreads) {
      decode_few::Preparation known;
      known.load(p, share.sequence, kDim);
      decode_few::take_rows<Cache, kDim, 8, kStages>(p, share, true, known, memory, source);
    }
    step_block_sync();
    Queries<Cache, kDim, 8> q;
    q.load(reinterpret_cast<const __nv_bfloat16*>(memory + Layout::kQueries),
           Layout::kQueryStride,
           p.group);
    float o[kColumns][4];
    float top[1] = {kMinusInfinity};
    float sum[1] = {0.0f};
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0f;
    }
    const int tokens = share.tokens();
#pragma unroll 1
    for (int round = 0; token_of(round * stages) < tokens; ++round) {
      const int own = token_of(round * stages + part);
      if (part < stages && own < tokens) {
        copy_async_wait<1>();  // the keys
        __syncwarp();
        const uint32_t stage = slot(shared, part);
        const int left = share.length - share.begin() - own;
        if (left <= Stage::kTokens) {
          decode_few::patch_stage<Stage>(stage, left - 1, memory + Layout::kNew);
          __syncwarp();
        }
        float s[Stage::kTiles][4];
        score_stage(q, stage, s);
        auto* to = reinterpret_cast<float2*>(memory + scores(part));
#pragma unroll
        for (int tile = 0; tile < Stage::kTiles; ++tile) {
          to[tile * 32 + lane] = make_float2(s[tile][0], s[tile][1]);
        }
        copy_async_wait<0>();  // the values
        if (left <= Stage::kTokens) {
          __syncwarp();  // all of them
          decode_few::patch_stage<Stage>(stage, left - 1, memory + Layout::kNew);
        }
      }
      chain_sync();
      const bool more = token_of((round + 1) * stages) < tokens;
      if (more) {
        ask<true>(p, share, pages, shared, round + 1);
      }
#pragma unroll 1
      for (int i = 0; i < stages && token_of(round * stages + i) < tokens; ++i) {
        float s[Stage::kTiles][4];
        const auto* from = reinterpret_cast<const float2*>(memory + scores(i));
#pragma unroll
        for (int tile = 0; tile < Stage::kTiles; ++tile) {
          const float2 v = from[tile * 32 + lane];
          s[tile][0] = v.x;
          s[tile][1] = v.y;
          s[tile][2] = s[tile][3] = 0.0f;
        }
        weigh_stage<Cache, kDim, 8, kSteps>(
            s,
            slot(shared, i) + kStageBytes,
            part * kSteps,
            share.length - share.begin() - token_of(round * stages + i),
            p.scale_log2,
            o,
            top,
            sum);
      }
      if (more) {
        chain_sync();
        ask<false>(p, share, pages, shared, round + 1);
      }
    }
    sum[0] += __shfl_xor_sync(~0u, sum[0], 1);
    sum[0] += __shfl_xor_sync(~0u, sum[0], 2);
    // Where the chain's first keys were, which nobody reads any more.
    const int lane_again = thread_again() % 32;
    const int row = lane_again / 4;
    if (row < p.group) {
      auto* rows = reinterpret_cast<float*>(memory + chain * Layout::kWarpRing);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int column = ((part * kColumns + i) * 4 + lane_again % 4) * 2;
        *reinterpret_cast<float2*>(Result<Cache, kDim, 8>::place(rows, row, column)) =
            make_float2(o[i][0], o[i][1]);
      }
      if (part == 0) {
        reinterpret_cast<float2*>(memory + Layout::kSums)[chain * 8 + row] =
            make_float2(top[0], sum[0]);
      }
    }
    step_block_sync();
    if (threadIdx.x < kDecodeThreads) {
      const int64_t place = static_cast<int64_t>(share.head) * p.max_chunks + share.chunk;
      decode_few::fold_warps<Cache, kDim, 8, kStages>(p, share, place, memory, 1.0f, target);
      if (share.cut.count > 1) {
        finish_if_last<kDim>(p, 0, share.head, share.cut.count, 1, share.head, 1, 1.0f, target);
      }
    }
  }

  /// A head of an empty sequence: zeros, once the row is there: nobody may be a layer ahead, and
  /// every pair must have been read before its copy is cleared.
  __device__ __forceinline__ void run_empty(const DecodeParams& p,
                                            const decode_few::Share& share,
                                            const StepQkvRow<kDim>& source,
                                            const StepAttendedRow<kDim>& target) const {
    if (threadIdx.x < kDim / 8) {
      for (int row = 0; row < p.group + 2; ++row) {
        (void)source.load(p, share, row, static_cast<int>(threadIdx.x) * 8);
      }
    }
    step_block_sync();
    for (int c = static_cast<int>(threadIdx.x) * 4; c < p.group * kDim; c += kStepThreads * 4) {
      target.store(p, 0, share.head * p.group + c / kDim, c % kDim, make_uint2(0, 0));
    }
  }
};

/// Once a step: the token's angles, slot and length and the first chunk's pages to shared memory,
/// and `p` to them, so that no layer waits for them. By all threads.
template <int kDim, int kStages>
__device__ __forceinline__ void step_know(DecodeParams& p, uint8_t* memory, bool has_norms) {
  using Attention = StepAttention<kDim, kStages>;
  const PagedPrepare& prepare = p.call.prepare;
  auto* angles = reinterpret_cast<float*>(memory + Attention::kAngles);
  auto* token = reinterpret_cast<int32_t*>(memory + Attention::kToken);
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < 2 * prepare.half) {
    angles[thread] = prepare.cos_sin[prepare.positions[0] * prepare.table_stride + thread];
  }
  const decode_few::Share share = decode_few::share_of(p, static_cast<int>(blockIdx.x));
  const int page = (share.begin() >> p.page_shift) + thread;
  if (thread < kStepKnownPages && page << p.page_shift < share.length) {
    reinterpret_cast<int32_t*>(memory + Attention::kPages)[thread] = p.call.page_table[page];
  }
  if (thread == 0) {
    token[0] = 0;
    token[1] = prepare.slots[0];
    token[2] = p.call.kv_lens[0];
  }
  step_block_sync();
  if (thread == 0) {
    p.call.kv_lens = token + 2;
    p.call.prepare.positions = token;
    p.call.prepare.slots = token + 1;
    p.call.prepare.cos_sin = angles;
    auto* norms = reinterpret_cast<__nv_bfloat16*>(memory + Attention::kNorms);
    p.call.prepare.q_weight = has_norms ? norms : nullptr;
    p.call.prepare.k_weight = has_norms ? norms + kDim : nullptr;
  }
}

/// Asks for the norms of a layer's heads, where it has any. With the keys' copies.
template <int kDim, int kStages>
__device__ __forceinline__ void step_ask_norms(const DecodeParams& p,
                                               uint32_t memory,
                                               const void* q_norm,
                                               const void* k_norm) {
  constexpr int kPieces = kDim / 8;  // of a norm
  const int thread = thread_again();
  if (q_norm != nullptr && thread < 2 * kPieces) {
    const auto* from = static_cast<const uint8_t*>(thread < kPieces ? q_norm : k_norm);
    copy_async_16(memory + StepAttention<kDim, kStages>::kNorms + thread * 16,
                  from + thread % kPieces * 16);
  }
}

// Functions of their own: what they need of registers would cost the products some, and these are
// read back from local memory, whose cache is small beside all that shared memory. `p` and `epoch`
// are in shared memory.

/// Asks for the first keys and values of a share. `late`: those that have their place only once x
/// of the first product has been read, or else all others.
template <int kDim, int kStages>
__device__ __noinline__ void step_ask(
    const DecodeParams& p, uint8_t* memory, int warp, int index, StepMoreStages more, bool late) {
  const decode_few::Share share = decode_few::share_of(p, index);
  const StepAttention<kDim, kStages> attention(warp, more);
  if (share.length > 0 && attention.is_late() == late) {
    attention.ask_first(p,
                        share,
                        StepAttention<kDim, kStages>::pages(p, share, memory, true),
                        shared_address(memory));
  }
}

/// All shares of this block, of which the first has been asked for. qkv, attended: of the first
/// copy.
template <int kDim, int kStages>
__device__ __noinline__ void step_attend(const DecodeParams& p,
                                         uint8_t* memory,
                                         int warp,
                                         StepMoreStages more,
                                         uint32_t* qkv,
                                         uint32_t* attended,
                                         int copy_pairs,
                                         const uint32_t& epoch,
                                         int layer) {
  const StepAttention<kDim, kStages> attention(warp, more);
  const StepQkvRow<kDim> source{step_row(qkv, copy_pairs, epoch + layer)};
  const StepAttendedRow<kDim> target{step_row(attended, copy_pairs, epoch + layer)};
  copy_async_wait<0>();  // the norms of heads, for all; and all else that was asked for
  step_block_sync();
  if (attention.is_late() && more.count != 0) {
    step_ask<kDim, kStages>(p, memory, warp, static_cast<int>(blockIdx.x), more, true);
  }
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x); i < step_shares(p); i += static_cast<int>(gridDim.x)) {
    const decode_few::Share share = decode_few::share_of(p, i);
    if (share.length <= 0) {
      attention.run_empty(p, share, source, target);
      continue;
    }
    const bool first = i == static_cast<int>(blockIdx.x);
    const int32_t* pages = StepAttention<kDim, kStages>::pages(p, share, memory, first);
    if (!first) {
      step_block_sync();
      attention.ask_first(p, share, pages, shared_address(memory));
    }
    attention.run(p, share, pages, memory, source, target);
  }
}

}  // namespace nibble::cuda
