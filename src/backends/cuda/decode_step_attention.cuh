#pragma once
// Decode attention inside decode_step_sm90: a chunk of a KV head by all sixteen warps of a block.
// The bits of attention_decode_few.cuh, where four warps take a chunk: warp w the stages w, w + 4,
// ... one after another. Such a chain is four warps here. Each scores one of the chain's stages, so
// that the scores of kStages stages are there at once; then each takes all of them, in order, into
// its quarter of the columns. What is left one after another is short.

#include <cstdint>

#include <cuda_bf16.h>

#include "backends/cuda/attention_decode_few.cuh"
#include "backends/cuda/decode_step_exchange.cuh"
#include "backends/cuda/device/ptx.cuh"

namespace nibble::cuda {

inline constexpr int kChainWarps = 4;
inline constexpr int kStepThreads = kDecodeWarps * kChainWarps * 32;

/// The queries, keys and values of a layer, as attention takes them.
template <int kDim>
struct StepQkvRow {
  const uint64_t* words;
  uint32_t tag;
  __device__ __forceinline__ uint4 load(const DecodeParams& p,
                                        const decode_few::Share& share,
                                        int row,
                                        int at) const {
    const int head = row < p.group
                         ? share.head * p.group + row
                         : p.call.heads + share.head + (row == p.group ? 0 : p.call.kv_heads);
    // The lanes of a half warp that have channels.
    const unsigned lanes = ((1u << (kDim / 8)) - 1) << (threadIdx.x & 16);
    return await_piece(words + (head * kDim + at) / 2, tag, lanes);
  }
};

template <int kDim>
struct StepAttendedRow {
  uint64_t* words;
  uint32_t tag;
  __device__ __forceinline__ void store(
      const DecodeParams& p, int sequence, int head, int column, const uint2& columns) const {
    uint64_t* to = words + (head * kDim + column) / 2;
    store_word(to, columns.x, tag);
    store_word(to + 1, columns.y, tag);
  }
};

/// What is dealt out to blocks: chunks of KV heads; of an empty sequence the heads.
__device__ __forceinline__ int step_shares(const DecodeParams& p) {
  return p.call.kv_heads * max(decode_few::share_of(p, 0).cut.count, 1);
}

__device__ __forceinline__ void step_block_sync() { named_barrier_sync(2, kStepThreads); }

/// kStages: of a chain that are in shared memory at once, at most kChainWarps.
template <int kDim, int kStages>
struct StepAttention {
  using Cache = __nv_bfloat16;
  using Layout = decode_few::Layout<Cache, kDim, 8, kStages>;
  using Stage = DecodeStage<Cache, kDim>;
  static_assert(kStages <= kChainWarps);
  // Scores of a stage: a float2 a lane and tile.
  static constexpr int kScoreBytes = Stage::kTiles * 32 * 8;
  static constexpr int kScores = Layout::kBytes;
  static constexpr int kBytes = kScores + kDecodeWarps * kStages * kScoreBytes;
  static constexpr int kSteps = Stage::kSegments / 2 / kChainWarps;  // of a warp's columns
  static constexpr int kColumns = kDim / 8 / kChainWarps;            // tiles of eight

  int warp, chain, part;

  __device__ __forceinline__ explicit StepAttention(int own_warp)
      : warp(own_warp), chain(own_warp / kChainWarps), part(own_warp % kChainWarps) {}

  __device__ __forceinline__ void chain_sync() const {
    named_barrier_sync(3 + chain, kChainWarps * 32);
  }
  __device__ __forceinline__ uint32_t slot(uint32_t shared, int i) const {
    return shared + chain * Layout::kWarpRing + i * (2 * kStageBytes);
  }
  /// First token, in the chunk, of the i-th stage of the chain.
  __device__ __forceinline__ int token_of(int i) const {
    return (i * kDecodeWarps + chain) * Stage::kTokens;
  }

  /// Asks for this warp's stage of a round of kStages, where there is one.
  __device__ __forceinline__ void ask(const DecodeParams& p,
                                      const decode_few::Share& share,
                                      uint32_t shared,
                                      int round) const {
    const int token = token_of(round * kStages + part);
    if (part < kStages && token < share.tokens()) {
      Stage::copy(p,
                  p.call.page_table,
                  share.head,
                  share.begin() + token,
                  share.length - 1,  // the new one comes otherwise
                  share.length,
                  slot(shared, part));
    }
    copy_async_commit();
  }

  /// Attends to a chunk whose first round has been asked for. By all threads of the block; shared
  /// memory is free again after the next step_block_sync().
  __device__ __forceinline__ void run(const DecodeParams& p,
                                      const decode_few::Share& share,
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
    for (int round = 0; token_of(round * kStages) < tokens; ++round) {
      const int own = token_of(round * kStages + part);
      if (part < kStages && own < tokens) {
        copy_async_wait<0>();
        __syncwarp();
        const uint32_t stage = slot(shared, part);
        const int left = share.length - share.begin() - own;
        if (left <= Stage::kTokens) {
          decode_few::patch_stage<Stage>(stage, left - 1, memory + Layout::kNew);
          __syncwarp();
        }
        float s[Stage::kTiles][4];
        score_stage(q, stage, s);
        auto* to =
            reinterpret_cast<float2*>(memory + kScores + (chain * kStages + part) * kScoreBytes);
#pragma unroll
        for (int tile = 0; tile < Stage::kTiles; ++tile) {
          to[tile * 32 + lane] = make_float2(s[tile][0], s[tile][1]);
        }
      }
      chain_sync();
#pragma unroll 1
      for (int i = 0; i < kStages && token_of(round * kStages + i) < tokens; ++i) {
        float s[Stage::kTiles][4];
        const auto* from =
            reinterpret_cast<const float2*>(memory + kScores + (chain * kStages + i) * kScoreBytes);
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
            share.length - share.begin() - token_of(round * kStages + i),
            p.scale_log2,
            o,
            top,
            sum);
      }
      if (token_of((round + 1) * kStages) < tokens) {
        chain_sync();
        ask(p, share, shared, round + 1);
      }
    }
    sum[0] += __shfl_xor_sync(~0u, sum[0], 1);
    sum[0] += __shfl_xor_sync(~0u, sum[0], 2);
    // Where the chain's first keys were, which nobody reads any more.
    const int row = lane / 4;
    if (row < p.group) {
      auto* rows = reinterpret_cast<float*>(memory + chain * Layout::kWarpRing);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const int column = ((part * kColumns + i) * 4 + lane % 4) * 2;
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

  /// A head of an empty sequence: zeros, once the row is there (nobody may be a layer ahead).
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

// Functions of their own: what they need of registers would cost the products some, and these are
// read back from local memory, whose cache is small beside all that shared memory. `p` and `epoch`
// are in shared memory.

/// Asks for the first keys and values of a share.
template <int kDim, int kStages>
__device__ __noinline__ void step_ask(const DecodeParams& p, uint8_t* memory, int warp, int index) {
  const decode_few::Share share = decode_few::share_of(p, index);
  if (share.length > 0) {
    StepAttention<kDim, kStages>(warp).ask(p, share, shared_address(memory), 0);
  }
}

/// All shares of this block, of which the first has been asked for.
template <int kDim, int kStages>
__device__ __noinline__ void step_attend(const DecodeParams& p,
                                         uint8_t* memory,
                                         int warp,
                                         const uint64_t* qkv,
                                         uint64_t* attended,
                                         const uint32_t& epoch,
                                         int layer) {
  const uint32_t tag = epoch + 1 + layer;
  const StepAttention<kDim, kStages> attention(warp);
  const StepQkvRow<kDim> source{qkv, tag};
  const StepAttendedRow<kDim> target{attended, tag};
  const int shares = step_shares(p);
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x); i < shares; i += static_cast<int>(gridDim.x)) {
    const decode_few::Share share = decode_few::share_of(p, i);
    if (share.length <= 0) {
      attention.run_empty(p, share, source, target);
      continue;
    }
    if (i != static_cast<int>(blockIdx.x)) {
      step_block_sync();
      attention.ask(p, share, shared_address(memory), 0);
    }
    attention.run(p, share, memory, source, target);
  }
}

}  // namespace nibble::cuda
