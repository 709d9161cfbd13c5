#pragma once
// nvfp4_w4a16_sm90: the device side.
//
// Contract. y = x W^T, tokens on the N side of the instruction, 128 features a block (two
// warpgroups of 64), kTokens tokens a tile. x through a tensor map (boxes of 64 columns, 128-byte
// swizzle, zero fill past the edges), weights as whole records (nvfp4_layout.h). Any m, n; k a
// multiple of 8 elements.
//
// Plan. Warp 8 brings records (bulk copies), warp 9 boxes of x, into a ring of kStages stages of
// kBlocks K64 blocks. Warps 0..7 decode 16 rows each in registers and multiply: mma.sync for 8
// tokens, wgmma with A from registers above. Weights do not depend on the previous kernel, so the
// ring is filled with them before griddepcontrol.wait; only x waits.
//
// K is cut where nvfp4_w4a16_cuts.h says, for every number of tokens. A piece has one accumulator;
// the pieces of a tile are added in order. Two ways through the work, same additions:
// - shared tiles: block b takes units [b U, (b + 1) U) of the cuts. What it has of a tile that it
// does not
//   own alone goes to the workspace as fp32: pieces singly, or summed where they are the tile's
//   first ones; then the last block to arrive (small tiles) or all of them, a slice each (kSerial),
//   add the parts.
// - whole tiles (kSerial): a block takes all pieces of a tile in turn, a second set of registers
//   sums them (nvfp4_w4a16_sm90_large.cuh). The tiles of the last wave may be shared in between.

#include <cstdint>

#include "backends/cuda/nvfp4_w4a16_sm90_config.cuh"
#include "backends/cuda/nvfp4_w4a16_sm90_large.cuh"

namespace nibble::cuda {

/// Tiles of up to 64 tokens: a block has one unit of the cuts, the last block of a tile to arrive
/// or all of them (kSlices) add its parts.
template <class Config>
__device__ __forceinline__ void consume_small(const W4A16Sm90Params& p, uint32_t base) {
  constexpr int kBlocks = Config::kBlocks;
  WgmmaRing<Config> ring(base);
  const uint32_t bias = ring.bias;
  W4A16Walk<Config::kDeal> walk(p);
  W4A16Segment s;
  // Shared tiles to be added in slices at the end: the one that other blocks began, the one that
  // this block began.
  int head_tile = -1;
  int tail_tile = -1;
  while (walk.next(p, &s)) {
    const int num_blocks = s.end - s.begin;
    float acc[Config::kAccumulators];
#pragma unroll
    for (int i = 0; i < Config::kAccumulators; ++i) {
      acc[i] = 0.0f;
    }
    if constexpr (Config::kWarpMma) {
      // Row l % 8 of 16-byte chunk l / 8, swizzled; chunks 4 to 7 are 64 bytes away.
      const uint32_t tokens_at =
          keep_in_register(base + (ring.lane % 8) * 128 + ((ring.lane / 8) ^ (ring.lane % 8)) * 16);
      const uint32_t tokens_high = keep_in_register(tokens_at ^ 64);
      auto multiply_block = [&](uint32_t weights, uint32_t tokens) {
        const PackedLane packed = {load_shared_16(ring.codes_at + weights),
                                   load_shared_8(ring.scales_at + weights)};
        uint32_t a[4][4];
        decode_lane(packed, bias, a);
#pragma unroll
        for (int j = 0; j < Config::kChunks; ++j) {
          const uint4 x0 = load_matrices(tokens_at + tokens + j * 1024);
          const uint4 x1 = load_matrices(tokens_high + tokens + j * 1024);
          float(&d)[4] = *reinterpret_cast<float(*)[4]>(acc + 4 * j);
          mma_m16n8k16(d, a[0], x0.x, x0.y);
          mma_m16n8k16(d, a[1], x0.z, x0.w);
          mma_m16n8k16(d, a[2], x1.x, x1.y);
          mma_m16n8k16(d, a[3], x1.z, x1.w);
        }
      };
      for (int left = num_blocks; left > 0; left -= kBlocks) {
        const int stage = ring.position.stage;
        barrier_wait(ring.full + stage * 8, ring.position.parity);
        const uint32_t weights = stage * Config::kWeightStage;
        const uint32_t tokens = stage * Config::kTokenStage;
        if (left >= kBlocks) {
#pragma unroll
          for (int b = 0; b < kBlocks; ++b) {
            multiply_block(weights + b * kTileRecordBytes, tokens + b * Config::kTokenBytes);
          }
        } else {
#pragma unroll 1
          for (int b = 0; b < left; ++b) {
            multiply_block(weights + b * kTileRecordBytes, tokens + b * Config::kTokenBytes);
          }
        }
        ring.leave_segment();
      }
    } else {
      // Two sets of fragments of half a K64 block: one is being decoded while the products of the
      // other run. No accumulator is touched in this loop, or ptxas would serialise the products.
      uint32_t even[2][4];
      uint32_t odd[2][4];
      ring.enter_stage();
      PackedLane packed = ring.load_block();
      decode_first_half(packed, bias, even);
      ring.multiply(acc, even, ring.tokens);
      int blocks = num_blocks;
#pragma unroll 1
      while (true) {
        decode_last_half(packed, bias, odd);
        ring.multiply(acc, odd, ring.tokens + 4);
        const bool more = --blocks != 0;
        int finished = -1;  // stage used up by the block before
        if (more) {
          finished = ring.next_block();
          packed = ring.load_block();
        }
        wgmma_wait<1>();
        if (!more) {
          break;
        }
        decode_first_half(packed, bias, even);
        ring.multiply(acc, even, ring.tokens);
        wgmma_wait<1>();
        ring.release_if_finished(finished);
      }
      wgmma_wait<0>();
      ring.leave_segment();
    }

    if (p.residual != nullptr) {
      wait_for_previous_kernel();  // long over; makes its writes visible to this thread too
    }
    // What follows is not to be computed ahead of the loops: registers are short there.
    const int thread = static_cast<int>(keep_in_register(threadIdx.x));
    const int row_tile = static_cast<int>(keep_in_register(s.row_tile));
    const int token_tile = static_cast<int>(keep_in_register(s.token_tile));
    if (num_blocks == p.cuts.k_blocks) {
      store_tile<Config>(p, thread, row_tile, token_tile, acc);
    } else {
      const W4A16Sharing sharing(p.cuts, p.by_units_per_block, row_tile);
      uint32_t* counter = shared_counter<Config>(p, row_tile, token_tile);
      const int slot = static_cast<int>(blockIdx.x) + (s.begin == 0 ? p.cuts.units : 0);
      export_part<Config>(p, thread, token_tile, slot, acc);
      named_barrier_sync(1, Config::kConsumers);
      if constexpr (Config::kSlices) {
        if (thread == 0) {
          add_acquire_release(counter, 1);
        }
        (s.begin != 0 ? head_tile : tail_tile) = row_tile;
      } else {
        if (thread == 0) {
          const bool last =
              add_acquire_release(counter, 1) == static_cast<uint32_t>(sharing.blocks) - 1;
          store_shared_word(base + Config::kFlagAt, last ? 1 : 0);
          if (last) {
            *counter = 0;
          }
        }
        named_barrier_sync(1, Config::kConsumers);
        if (load_shared_word(base + Config::kFlagAt) != 0) {
          reduce_parts<Config>(p, thread, row_tile, token_tile, sharing, 0, 1);
        }
      }
    }
    if constexpr (Config::kSlices) {
      if (s.last) {
#pragma unroll 1
        for (int i = 0; i < 2; ++i) {
          const int shared_with = i == 0 ? head_tile : tail_tile;
          if (shared_with >= 0) {
            reduce_slice<Config>(p, thread, shared_with, token_tile);
          }
        }
        head_tile = -1;
        tail_tile = -1;
      }
    }
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks) nvfp4_w4a16_sm90(
    const __grid_constant__ W4A16Sm90Params p) {
  constexpr int kStages = Config::kStages;
  constexpr int kBlocks = Config::kBlocks;
  constexpr int kTokens = Config::kTokens;

  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = shared_address(shared);
  const uint32_t full = base + Config::kBarriersAt;
  const uint32_t empty = full + kStages * 8;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    if ((base & 1023) != 0) {
      __trap();  // the swizzle and the descriptors assume it
    }
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + i * 8, 2);  // the two producers
      barrier_init(empty + i * 8, Config::kEveryLaneArrives ? Config::kConsumers : 8);
    }
    barrier_init_fence();
  }
  __syncthreads();
  allow_next_kernel();

  if (warp >= 8) {
    // ---- producers: warp 8 brings weights, warp 9 tokens
    // -------------------------------------------
    if constexpr (Config::kReallocate) {
      give_registers<Config::kProducerRegisters>();
    }
    RingPosition<kStages> ring;
    W4A16Segment s;
    if (warp == 8 && lane == 0) {
      W4A16Walk<Config::kDeal> walk(p);
      while (walk.next(p, &s)) {
        const uint8_t* from =
            p.packed +
            (static_cast<int64_t>(s.row_tile) * p.cuts.k_blocks + s.begin) * kTileRecordBytes;
        for (int block = s.begin; block < s.end; block += kBlocks) {
          const uint32_t bytes = min(kBlocks, s.end - block) * kTileRecordBytes;
          const uint32_t barrier = full + ring.stage * 8;
          // The first pass over the ring is free: a fresh barrier's previous phase counts as
          // complete.
          barrier_wait(empty + ring.stage * 8, ring.parity ^ 1);
          barrier_expect_bytes(barrier, bytes);
          bulk_copy(base + Config::kWeightsAt + ring.stage * Config::kWeightStage,
                    from,
                    bytes,
                    barrier,
                    p.weight_policy);
          from += kBlocks * kTileRecordBytes;
          ring.advance();
        }
      }
    } else if (warp == 9 && lane == 0) {
      tensor_prefetch(&p.x_map);
      wait_for_previous_kernel();
      W4A16Walk<Config::kDeal> walk(p);
      while (walk.next(p, &s)) {
        const int token = s.token_tile * kTokens;
        for (int block = s.begin; block < s.end; block += kBlocks) {
          const uint32_t barrier = full + ring.stage * 8;
          const uint32_t to = base + ring.stage * Config::kTokenStage;
          barrier_wait(empty + ring.stage * 8, ring.parity ^ 1);
          if (p.whole_blocks) {
            // A box may reach past the segment or the end (zeros): not read, but always counted.
            barrier_expect_bytes(barrier, Config::kTokenStage);
            tensor_copy_3d(to, &p.x_map, 0, token, block, barrier, kEvictLast);
          } else {
            const int count = min(kBlocks, s.end - block);
            barrier_expect_bytes(barrier, count * Config::kTokenBytes);
            for (int b = 0; b < count; ++b) {
              tensor_copy_3d(to + b * Config::kTokenBytes,
                             &p.x_map,
                             (block + b) * kRecordColumns,
                             token,
                             0,
                             barrier,
                             kEvictLast);
            }
          }
          ring.advance();
        }
      }
    }
  } else {
    // ---- consumers
    // -----------------------------------------------------------------------------------
    if constexpr (Config::kReallocate) {
      take_registers<Config::kConsumerRegisters>();
    }
    if constexpr (Config::kSerial) {
      WgmmaRing<Config> ring(base);
      consume_large<Config>(p, ring);
    } else {
      consume_small<Config>(p, base);
    }
  }
}

template <W4A16Output kOutput>
struct W4A16Kernels {
  using Deal = W4A16Deal;
  using Tokens8 = W4A16Config<8, 5, 4, 2, Deal::Shared, false, 0, kOutput>;
  using Tokens16 = W4A16Config<16, 4, 4, 2, Deal::Shared, false, 0, kOutput>;
  using Tokens32 = W4A16Config<32, 6, 2, 2, Deal::Shared, false, 104, kOutput>;
  using Tokens32Slices = W4A16Config<32, 6, 2, 2, Deal::Shared, true, 104, kOutput>;
  using Tokens64 = W4A16Config<64, 8, 1, 2, Deal::Shared, false, 104, kOutput>;
  using Tokens64Slices = W4A16Config<64, 8, 1, 2, Deal::Shared, true, 104, kOutput>;
  using Tokens64Whole = W4A16Config<64, 8, 2, 1, Deal::Whole, false, 232, kOutput>;
  using Tokens128 = W4A16Config<128, 5, 2, 1, Deal::SharedInTurn, true, 240, kOutput>;
  using Tokens128Whole = W4A16Config<128, 5, 2, 1, Deal::Whole, false, 240, kOutput>;
  using Tokens128Mixed = W4A16Config<128, 5, 2, 1, Deal::WholeThenLine, true, 240, kOutput>;
  using Tokens128Chain = W4A16Config<128, 5, 2, 1, Deal::LineAroundWhole, false, 240, kOutput>;
};

}  // namespace nibble::cuda
