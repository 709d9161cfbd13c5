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
// sums them.

#include <cstdint>
#include <type_traits>

#include <cuda.h>
#include <cuda_bf16.h>

#include "backends/cuda/device/nvfp4_decode.cuh"
#include "backends/cuda/device/ptx.cuh"
#include "backends/cuda/device/wgmma.cuh"
#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_w4a16_cuts.h"
#include "backends/cuda/nvfp4_w4a16_share.cuh"
#include "backends/cuda/nvfp4_w4a16_store.cuh"

namespace nibble::cuda {

struct W4A16Sm90Params : W4A16Params {
  uint64_t weight_policy;
  bool whole_blocks;  // k is a multiple of 64: one tensor copy brings a stage
  CUtensorMap x_map;  // 3-D: 64 columns, tokens, K64 blocks; or all columns, tokens, 1
};

template <int kTokens_,
          int kStages_,
          int kBlocks_,
          int kMinBlocks_,
          bool kSerial_,
          bool kSlices_,
          int kConsumerRegisters_,
          W4A16Output kOutput_,
          bool kTail_ = false>
struct W4A16Config {
  static constexpr W4A16Output kOutput = kOutput_;
  static constexpr int kTokens = kTokens_;
  static constexpr int kStages = kStages_;
  static constexpr int kBlocks = kBlocks_;        // K64 blocks a stage
  static constexpr int kMinBlocks = kMinBlocks_;  // thread blocks an SM
  static constexpr bool kSerial = kSerial_;
  static constexpr bool kTail = kTail_;  // whole tiles, but those of the last wave shared
  static constexpr bool kWarpMma = kTokens <= 16;
  // K16 steps a group of products: a whole K64 block, or half of one where registers are short.
  static constexpr int kSteps = !kSerial_ && (kTokens == 32 || kTokens == 64) ? 2 : 4;
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

/// The counter of a shared tile.
template <class Config>
__device__ __forceinline__ uint32_t* shared_counter(const W4A16Params& p,
                                                    int line_row,
                                                    int token_tile) {
  return p.counters + (Config::kTail ? 0 : token_tile * p.cuts.row_tiles) + line_row;
}

/// For tiles of which every block adds a slice: waits until all parts are there, adds this block's
/// slice, and leaves the counter at zero.
template <class Config>
__device__ __forceinline__ void reduce_slice(const W4A16Params& p,
                                             int thread,
                                             int line_row,
                                             int token_tile) {
  const W4A16Sharing sharing(line_cuts<Config::kTail>(p), p.units_per_block, line_row);
  uint32_t* counter = shared_counter<Config>(p, line_row, token_tile);
  int row_tile = line_row;
  if constexpr (Config::kTail) {
    find_tile(p, p.first_tiles + line_row, &row_tile, &token_tile);
  }
  if (thread == 0) {
    while (load_acquire(counter) < static_cast<uint32_t>(sharing.blocks)) {
    }
  }
  named_barrier_sync(1, Config::kConsumers);
  reduce_parts<Config>(p,
                       thread,
                       row_tile,
                       token_tile,
                       sharing,
                       static_cast<int>(blockIdx.x) - sharing.first_block,
                       sharing.blocks);
  named_barrier_sync(1, Config::kConsumers);
  if (thread == 0 && add_acquire_release(counter, 1) == 2u * sharing.blocks - 1) {
    *counter = 0;
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
      give_registers<Config::kMinBlocks == 1 ? 40 : 32>();
    }
    RingPosition<kStages> ring;
    W4A16Segment s;
    if (warp == 8 && lane == 0) {
      W4A16Walk<Config::kSerial, false, Config::kTail> walk(p);
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
      W4A16Walk<Config::kSerial, false, Config::kTail> walk(p);
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
    const int group = warp / 4;  // warpgroup: rows 64 * group of the tile
    const uint32_t bias = scale_bias();
    const uint32_t codes_at = keep_in_register(base + Config::kWeightsAt + group * kRecordBytes +
                                               (warp % 4) * 512 + lane * 16);
    const uint32_t scales_at =
        keep_in_register(base + Config::kWeightsAt + group * kRecordBytes + kRecordCodeBytes +
                         (warp % 4) * 64 + (lane / 4) * 8);
    auto release = [&](int stage) {
      if constexpr (!Config::kEveryLaneArrives) {
        __syncwarp();  // all lanes have read their records
      }
      if (Config::kEveryLaneArrives || lane == 0) {
        barrier_arrive(empty + stage * 8);
      }
    };

    RingPosition<kStages> ring;
    W4A16Walk<Config::kSerial, false, Config::kTail> walk(p);
    W4A16Segment s;
    // Shared tiles to be added in slices at the end: the one that other blocks began, the one that
    // this block began.
    int head_tile = -1;
    int tail_tile = -1;
    while (walk.next(p, &s)) {
      const int num_blocks = s.end - s.begin;
      const bool shared_tile = num_blocks != p.cuts.k_blocks;
      float acc[Config::kAccumulators];
      float total[Config::kSerial ? Config::kAccumulators : 1];
#pragma unroll
      for (int i = 0; i < Config::kAccumulators; ++i) {
        acc[i] = 0.0f;
      }

      if constexpr (Config::kWarpMma) {
        // Row l % 8 of 16-byte chunk l / 8, swizzled; chunks 4 to 7 are 64 bytes away.
        const uint32_t tokens_at =
            keep_in_register(base + (lane % 8) * 128 + ((lane / 8) ^ (lane % 8)) * 16);
        const uint32_t tokens_high = keep_in_register(tokens_at ^ 64);
        auto multiply_block = [&](uint32_t weights, uint32_t tokens) {
          const PackedLane packed = {load_shared_16(codes_at + weights),
                                     load_shared_8(scales_at + weights)};
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
          barrier_wait(full + ring.stage * 8, ring.parity);
          const uint32_t weights = ring.stage * Config::kWeightStage;
          const uint32_t tokens = ring.stage * Config::kTokenStage;
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
          release(ring.stage);
          ring.advance();
        }
      } else {
        int in_stage = 0;
        // Of the block at hand: offset of its records, low word of its tokens' descriptor (the same
        // in all lanes, and known to be: descriptors live in uniform registers).
        uint32_t weights = 0;
        uint32_t tokens = 0;
        auto enter_stage = [&] {
          barrier_wait(full + ring.stage * 8, ring.parity);
          weights = ring.stage * Config::kWeightStage;
          tokens = wgmma_descriptor_low(base + ring.stage * Config::kTokenStage);
        };
        auto load_block = [&] {
          return PackedLane{load_shared_16(codes_at + weights), load_shared_8(scales_at + weights)};
        };
        auto multiply = [&]<int kSteps>(uint32_t(&a)[kSteps][4], uint32_t x) {
          const uint32_t uniform = __shfl_sync(0xFFFFFFFFu, x, 0);
          pin_registers(a);
          wgmma_fence();
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            WgmmaRs<kTokens>::run(acc, a[step], wgmma_descriptor(uniform + 2 * step));
          }
          wgmma_commit();
        };
        // Steps to the next K64 block; returns the stage that is used up once the products in
        // flight are done, or -1.
        auto next_block = [&] {
          if (kBlocks > 1 && ++in_stage < kBlocks) {
            weights += kTileRecordBytes;
            tokens += Config::kTokenBytes >> 4;
            return -1;
          }
          const int finished = ring.stage;
          in_stage = 0;
          ring.advance();
          enter_stage();
          return finished;
        };
        auto release_if_finished = [&](int stage) {
          if (kBlocks == 1 || stage >= 0) {
            release(stage);
          }
        };

        if constexpr (Config::kSerial) {
#pragma unroll
          for (int i = 0; i < Config::kAccumulators; ++i) {
            total[i] = -0.0f;  // -0 + v is v for every v, so the first piece is taken as it is
          }
        }
        enter_stage();
        for (int begin = s.begin; begin < s.end;) {
          int end = s.end;
          int unit = blockIdx.x;
          if constexpr (Config::kSerial) {
            const int tile_begin = s.row_tile * p.cuts.k_blocks;
            unit = p.cuts.unit_of(tile_begin + begin);
            end = min(end, p.cuts.unit_begin(unit + 1) - tile_begin);
#pragma unroll
            for (int i = 0; i < Config::kAccumulators; ++i) {
              acc[i] = 0.0f;
            }
          }
          int blocks = end - begin;
          // Two sets of fragments: one is being decoded while the products of the other run. The
          // next block is fetched before waiting. No accumulator is touched in these loops, or
          // ptxas would serialise them.
          uint32_t even[Config::kSteps][4];
          uint32_t odd[Config::kSteps][4];
          PackedLane packed = load_block();
          int finished = -1;  // stage used up by the block before the one in flight
          auto fetch_next = [&] {
            if (--blocks == 0) {
              return false;
            }
            finished = next_block();
            packed = load_block();
            return true;
          };
          if constexpr (Config::kSteps == 4) {
            decode_lane(packed, bias, even);
            multiply(even, tokens);
            bool more = fetch_next();
#pragma unroll 1
            while (more) {
              decode_lane(packed, bias, odd);
              multiply(odd, tokens);
              const int before_odd = finished;
              more = fetch_next();
              wgmma_wait<1>();
              release_if_finished(before_odd);
              if (!more) {
                break;
              }
              decode_lane(packed, bias, even);
              multiply(even, tokens);
              const int before_even = finished;
              more = fetch_next();
              wgmma_wait<1>();
              release_if_finished(before_even);
            }
          } else {
            decode_first_half(packed, bias, even);
            multiply(even, tokens);
#pragma unroll 1
            while (true) {
              decode_last_half(packed, bias, odd);
              multiply(odd, tokens + 4);
              const bool more = fetch_next();
              wgmma_wait<1>();
              if (!more) {
                break;
              }
              decode_first_half(packed, bias, even);
              multiply(even, tokens);
              wgmma_wait<1>();
              release_if_finished(finished);
            }
          }
          wgmma_wait<0>();
          if (end < s.end) {
            release_if_finished(next_block());
          } else {
            release(ring.stage);
            ring.advance();
          }
          if constexpr (Config::kSerial) {
            if (s.begin != 0) {
              const int slot =
                  Config::kTail ? unit + (s.line_row - s.row_tile) * p.line_pieces : unit;
              export_part<Config>(p, keep_in_register(threadIdx.x), s.token_tile, slot, acc);
            } else {
#pragma unroll
              for (int i = 0; i < Config::kAccumulators; ++i) {
                total[i] += acc[i];
              }
            }
          }
          begin = end;
        }
      }

      if (p.residual != nullptr) {
        wait_for_previous_kernel();  // long over; makes its writes visible to this thread too
      }
      // What follows is not to be computed ahead of the loops: registers are short there.
      const int thread = static_cast<int>(keep_in_register(threadIdx.x));
      const int row_tile = static_cast<int>(keep_in_register(s.row_tile));
      const int token_tile = static_cast<int>(keep_in_register(s.token_tile));
      const int line_row =
          Config::kTail ? static_cast<int>(keep_in_register(s.line_row)) : row_tile;
      float* result = acc;
      if constexpr (Config::kSerial) {
        result = total;
      }
      bool complete = !shared_tile;
      if (shared_tile) {
        const W4A16Sharing sharing(line_cuts<Config::kTail>(p), p.units_per_block, line_row);
        uint32_t* counter = shared_counter<Config>(p, line_row, token_tile);
        if (Config::kSlices && Config::kOwnerBlocks > 0 && s.begin == 0 &&
            sharing.blocks <= Config::kOwnerBlocks) {
          // Few others: this block has the first part in registers and waits for the rest.
          if (thread == 0) {
            while (load_acquire(counter) < static_cast<uint32_t>(sharing.blocks) - 1) {
            }
          }
          named_barrier_sync(1, Config::kConsumers);
#pragma unroll 1
          for (int part = 1; part < sharing.parts; ++part) {
            const uint8_t* from = part_address<Config>(
                p, thread, token_tile, sharing.slot(line_cuts<Config::kTail>(p), part));
            float4 v[Config::kChunks];
#pragma unroll
            for (int j = 0; j < Config::kChunks; ++j) {
              v[j] = __ldcg(reinterpret_cast<const float4*>(from + j * 2048));
            }
#pragma unroll
            for (int j = 0; j < Config::kChunks; ++j) {
              result[4 * j] += v[j].x;
              result[4 * j + 1] += v[j].y;
              result[4 * j + 2] += v[j].z;
              result[4 * j + 3] += v[j].w;
            }
          }
          if (thread == 0) {
            *counter = 0;
          }
          complete = true;
        } else {
          if (s.begin == 0) {
            const int slot = line_cuts<Config::kTail>(p).units + static_cast<int>(blockIdx.x);
            export_part<Config>(p, thread, token_tile, slot, result);
          } else if constexpr (!Config::kSerial) {
            export_part<Config>(p, thread, token_tile, blockIdx.x, result);
          }
          named_barrier_sync(1, Config::kConsumers);
          if constexpr (Config::kSlices) {
            if (thread == 0) {
              add_acquire_release(counter, 1);
            }
            if (sharing.blocks > Config::kOwnerBlocks) {
              (s.begin != 0 ? head_tile : tail_tile) = line_row;
            }
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
      }
      if (complete) {
        store_tile<Config>(p, thread, row_tile, token_tile, result);
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
}

template <W4A16Output kOutput>
struct W4A16Kernels {
  using Tokens8 = W4A16Config<8, 5, 4, 2, false, false, 0, kOutput>;
  using Tokens16 = W4A16Config<16, 4, 4, 2, false, false, 0, kOutput>;
  using Tokens32 = W4A16Config<32, 6, 2, 2, false, false, 104, kOutput>;
  using Tokens32Slices = W4A16Config<32, 6, 2, 2, false, true, 104, kOutput>;
  using Tokens64 = W4A16Config<64, 8, 1, 2, false, false, 104, kOutput>;
  using Tokens64Slices = W4A16Config<64, 8, 1, 2, false, true, 104, kOutput>;
  using Tokens64Whole = W4A16Config<64, 8, 2, 1, true, true, 232, kOutput>;
  using Tokens128 = W4A16Config<128, 5, 2, 1, true, true, 232, kOutput>;
  using Tokens128Mixed = W4A16Config<128, 5, 2, 1, true, true, 232, kOutput, true>;
};

}  // namespace nibble::cuda
