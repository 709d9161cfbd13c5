#pragma once
// nvfp4_w4a16_sm90: the kernels' shapes, their parameters, and a consumer's view of the ring of
// stages. The kernel itself is in nvfp4_w4a16_sm90.cuh.

#include <cstdint>

#include <cuda.h>
#include <cuda_bf16.h>

#include "backends/cuda/device/nvfp4_decode.cuh"
#include "backends/cuda/device/ptx.cuh"
#include "backends/cuda/device/wgmma.cuh"
#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_w4a16_share.cuh"
#include "backends/cuda/nvfp4_w4a16_store.cuh"

namespace nibble::cuda {

struct W4A16Sm90Params : W4A16Params {
  uint64_t weight_policy;
  bool whole_blocks;  // k is a multiple of 64: one tensor copy brings a stage
  int lag;            // cycles that the second warpgroup of large tiles begins later
  CUtensorMap x_map;  // 3-D: 64 columns, tokens, K64 blocks; or all columns, tokens, 1
};

template <int kTokens_,
          int kStages_,
          int kBlocks_,
          int kMinBlocks_,
          W4A16Deal kDeal_,
          bool kSlices_,
          int kConsumerRegisters_,
          W4A16Output kOutput_>
struct W4A16Config {
  static constexpr W4A16Output kOutput = kOutput_;
  static constexpr int kTokens = kTokens_;
  static constexpr int kStages = kStages_;
  static constexpr int kBlocks = kBlocks_;        // K64 blocks a stage
  static constexpr int kMinBlocks = kMinBlocks_;  // thread blocks an SM
  static constexpr W4A16Deal kDeal = kDeal_;
  static constexpr bool kWhole = kDeal == W4A16Deal::Whole;
  static constexpr bool kLine = has_line(kDeal);
  // The block with the last pieces of a shared tile adds them to what the others bring.
  static constexpr bool kChain = kDeal == W4A16Deal::LineAroundWhole;
  // Large tiles: a block takes the pieces of a tile in turn (nvfp4_w4a16_sm90_large.cuh).
  static constexpr bool kSerial = kDeal != W4A16Deal::Shared;
  // Sums are stored while the next tile's products run. With shared tiles in the same kernel there
  // are no registers for it.
  static constexpr bool kDefers = kWhole;
  // A piece's first block is decoded while the last products of the piece before run; where parts
  // are exported in between there are no registers for it.
  static constexpr bool kDecodesAhead = kSerial && !kSlices_;
  static constexpr bool kWarpMma = kTokens <= 16;
  static constexpr int kConsumers = 256;
  // Who frees a stage: every lane for itself, or one for its warp after __syncwarp(). Measured: the
  // first takes 7 to 17 % less with 32 tokens, 3 to 5 % less with 64, the second 2 % less with
  // whole tiles of 128. compute-sanitizer's racecheck does not follow a barrier through
  // __syncwarp() and reports the second; a checked build has the first everywhere and is clean.
#if defined(NIBBLE_CHECKED_BARRIERS)
  static constexpr bool kEveryLaneArrives = true;
#else
  static constexpr bool kEveryLaneArrives = !kSerial;
#endif
  // Parts of a tile are added in slices by all of its blocks, which must be resident at once; or by
  // the last one to arrive. Slices pay where matrices are small and parts large.
  static constexpr bool kSlices = kSlices_;
  // But where at most so many blocks share a tile, the first one adds what the others bring.
  static constexpr int kOwnerBlocks = kSerial ? 3 : 0;
  // Where the consumers need more registers than an even share, the producers are a whole warpgroup
  // that hands its own over (setmaxnreg); elsewhere they are two warps.
  static constexpr int kConsumerRegisters = kConsumerRegisters_;
  static constexpr bool kReallocate = kConsumerRegisters > 0;
  // What is left of 168 (80) a thread.
  static constexpr int kProducerRegisters = kMinBlocks > 1             ? 32
                                            : kConsumerRegisters > 232 ? 24
                                                                       : 40;
  static constexpr int kThreads = kConsumers + (kReallocate ? 128 : 64);
  static constexpr int kTokenBytes = kTokens * 128;  // of one K64 block
  static constexpr int kTokenStage = kBlocks * kTokenBytes;
  static constexpr int kWeightStage = kBlocks * kTileRecordBytes;
  static constexpr int kWeightsAt = kStages * kTokenStage;
  static constexpr int kBarriersAt = kWeightsAt + kStages * kWeightStage;
  static constexpr int kFlagAt =
      kBarriersAt + 2 * kStages * 8;  // one word: was this block the last?
  static constexpr int kSharedBytes = kFlagAt + 16;
  static constexpr int kAccumulators = kTokens / 2;  // of a thread
  static constexpr int kChunks = kTokens / 8;        // of four accumulators, 8 tokens
  // Chunks and parts that are loaded at a time when parts are added; bounded by registers.
  static constexpr bool kSmallSlices = kSlices && !kSerial;  // a chunk or two a block
  static constexpr int kReduceWidth = kSmallSlices ? 1 : kChunks < 4 ? kChunks : 4;
  static constexpr int kReduceDepth = kSmallSlices ? 4 : 8 / kReduceWidth;
};

/// Position in the ring of stages.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// What a wgmma consumer knows of the ring: the stage at hand, and where its part of the records
/// and the tokens of the K64 block at hand are.
template <class Config>
struct WgmmaRing {
  uint32_t base, full, empty;
  uint32_t codes_at, scales_at;
  uint32_t bias;
  int lane;
  RingPosition<Config::kStages> position;
  int in_stage = 0;
  // Of the block at hand: offset of its records, low word of its tokens' descriptor (the same
  // in all lanes, and known to be: descriptors live in uniform registers).
  uint32_t weights = 0;
  uint32_t tokens = 0;

  __device__ __forceinline__ explicit WgmmaRing(uint32_t shared_base)
      : base(shared_base),
        full(shared_base + Config::kBarriersAt),
        empty(full + Config::kStages * 8),
        bias(scale_bias()),
        lane(threadIdx.x % 32) {
    const int warp = threadIdx.x / 32;  // warpgroup warp / 4 has the rows of one record
    const uint32_t record = base + Config::kWeightsAt + warp / 4 * kRecordBytes;
    codes_at = keep_in_register(record + (warp % 4) * 512 + lane * 16);
    scales_at = keep_in_register(record + kRecordCodeBytes + (warp % 4) * 64 + (lane / 4) * 8);
  }
  __device__ __forceinline__ void release(int stage) const {
    if constexpr (!Config::kEveryLaneArrives) {
      __syncwarp();  // all lanes have read their records
    }
    if (Config::kEveryLaneArrives || lane == 0) {
      barrier_arrive(empty + stage * 8);
    }
  }
  __device__ __forceinline__ void release_if_finished(int stage) const {
    if (Config::kBlocks == 1 || stage >= 0) {
      release(stage);
    }
  }
  __device__ __forceinline__ void enter_stage() {
    barrier_wait(full + position.stage * 8, position.parity);
    weights = position.stage * Config::kWeightStage;
    tokens = wgmma_descriptor_low(base + position.stage * Config::kTokenStage);
  }
  __device__ __forceinline__ PackedLane load_block() const {
    return {load_shared_16(codes_at + weights), load_shared_8(scales_at + weights)};
  }
  /// Steps to the next K64 block; returns the stage that is used up once the products in
  /// flight are done, or -1.
  __device__ __forceinline__ int next_block() {
    if (Config::kBlocks > 1 && ++in_stage < Config::kBlocks) {
      weights += kTileRecordBytes;
      tokens += Config::kTokenBytes >> 4;
      return -1;
    }
    const int finished = position.stage;
    in_stage = 0;
    position.advance();
    enter_stage();
    return finished;
  }
  /// Leaves the stage at hand, whose products are done; a segment begins with a stage.
  __device__ __forceinline__ void leave_segment() {
    release(position.stage);
    position.advance();
    in_stage = 0;
  }
  /// acc += (or, without kAccumulate, =) fragments * tokens at descriptor x.
  template <bool kAccumulate = true, int kSteps>
  __device__ __forceinline__ void multiply(float (&acc)[Config::kAccumulators],
                                           uint32_t (&a)[kSteps][4],
                                           uint32_t x) const {
    using Product = WgmmaRs<Config::kTokens>;
    pin_registers(a);
    wgmma_fence();
    if constexpr (kAccumulate) {
      Product::run(acc, a[0], wgmma_descriptor(x));
    } else {
      Product::start(acc, a[0], wgmma_descriptor(x));
    }
#pragma unroll
    for (int step = 1; step < kSteps; ++step) {
      Product::run(acc, a[step], wgmma_descriptor(x + 2 * step));
    }
    wgmma_commit();
  }
};

}  // namespace nibble::cuda
