#pragma once
// nvfp4_w4a16_sm80: the device side. For Ampere, Ada and, through its PTX, everything newer.
//
// Contract. That of nvfp4_w4a16_sm90: the same packed matrix, cuts of K and order of additions, so
// the same bits. y = x W^T, 128 features a block, kTokens tokens a tile; any m, n; k a multiple of
// 8 elements, rows of x 16-byte aligned.
//
// Plan. 256 threads, two blocks an SM (one with SwiGLU of 64 tokens), no roles: every lane brings
// by cp.async the 16 bytes of codes that it decodes itself (a lane's part of a record is
// contiguous), its warp the scales, the block x (128-byte swizzle, zeros past the edges), into a
// ring of p.stages stages of kBlocks K64 blocks. Warp w decodes 16 rows in registers and multiplies
// with mma.sync. One __syncthreads() a stage. The loads walk ahead of the products, over the end of
// a tile as well.
// - shared tiles: a block has one unit of the cuts; the last block of a tile to arrive adds the
//   parts. No block waits for another, so any number of blocks may be resident.
// - whole tiles (kWhole): persistent; a second set of registers sums the pieces.
//
// Differs from its Hopper neighbour by what sm_80 lacks: wgmma, bulk and tensor copies, register
// reallocation, programmatic dependent launch. Figures: docs/benchmarks.md.

#include <cstdint>

#include <cuda_bf16.h>

#include "backends/cuda/device/cp_async.cuh"
#include "backends/cuda/device/nvfp4_decode.cuh"
#include "backends/cuda/device/ptx.cuh"
#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_w4a16_share.cuh"
#include "backends/cuda/nvfp4_w4a16_store.cuh"

namespace nibble::cuda {

struct W4A16Sm80Params : W4A16Params {
  const __nv_bfloat16* x;
  int64_t ldx;
  int k;
  int ring_bytes;  // of all stages
  bool many_stages;
};

template <int kTokens_,
          int kBlocks_,
          int kFewStages_,
          int kManyStages_,
          int kSets_,
          bool kWhole_,
          W4A16Output kOutput_>
struct W4A16Sm80Config {
  static constexpr W4A16Output kOutput = kOutput_;
  static constexpr int kTokens = kTokens_;
  static constexpr int kBlocks = kBlocks_;  // K64 blocks a stage
  // Two blocks of kFewStages fit into the 100 KB of an sm_86, sm_89 or sm_120, two of kManyStages
  // into the 164 KB of an sm_80 and the 228 KB of the large newer ones (64 tokens: these only).
  static constexpr int kFewStages = kFewStages_;
  static constexpr int kManyStages = kManyStages_;
  // Sets of 16 rows a warp. 1: its own rows and all tokens. 2: also those of the tile's other
  // record, and half of the tokens: twice the decoding, half of the shared memory's bandwidth.
  static constexpr int kSets = kSets_;
  static constexpr bool kWhole = kWhole_;
  static constexpr bool kLine = false;
  static constexpr int kThreads = 256;
  // The gate in the epilogue of 64 tokens needs more registers than two blocks have.
  static constexpr int kBlocksPerSm = kOutput == W4A16Output::SwiGlu && kTokens == 64 ? 1 : 2;
  static constexpr int kTokenBytes = kTokens * 128;  // of one K64 block
  static constexpr int kWeightsAt = kBlocks * kTokenBytes;
  static constexpr int kStageBytes = kWeightsAt + kBlocks * kTileRecordBytes;
  static constexpr int kRingAt = 128;  // before it one word: was this block the last?
  static constexpr int shared_bytes(int stages) { return kRingAt + stages * kStageBytes; }
  static constexpr int kCopies = kBlocks * kTokens * 8 / kThreads;  // of x, a thread and stage
  static constexpr int kAccumulators = kTokens / 2;
  static constexpr int kChunks = kTokens / 8;
  static constexpr int kWarpChunks = kChunks / kSets;
  static constexpr int kReduceWidth = kChunks < 4 ? kChunks : 4;
  static constexpr int kReduceDepth = 8 / kReduceWidth;
  static_assert(kCopies * kThreads == kBlocks * kTokens * 8);
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm) nvfp4_w4a16_sm80(
    const __grid_constant__ W4A16Sm80Params p) {
  constexpr int kBlocks = Config::kBlocks;
  constexpr int kTokens = Config::kTokens;
  constexpr int kCopies = Config::kCopies;

  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t base = shared_address(shared);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const uint32_t ring = base + Config::kRingAt;

  constexpr W4A16Deal kDeal = Config::kWhole ? W4A16Deal::Whole : W4A16Deal::Shared;

  // ---- loads: one stage at a time, ahead of the products ----
  W4A16Walk<kDeal> walk(p);
  W4A16Walk<kDeal> ahead(p);  // whole tiles only
  // The next K64 block: its place among those of all row tiles, and of its own.
  int line = Config::kWhole ? 0 : walk.position;
  int load_at = Config::kWhole ? p.cuts.k_blocks : line % p.cuts.k_blocks;
  int line_end = Config::kWhole ? 0 : walk.stop;  // whole tiles: of the piece
  // Of x, copies i = 0, 1, ...: this thread's token and K64 block are so many after those of copy
  // 0.
  constexpr int kRows = Config::kThreads / 8;
  const auto own_token = [](uint32_t own) { return static_cast<int>(own / 8 % kTokens); };
  const auto own_column = [](uint32_t own) {
    return static_cast<int>(own / 8 / kTokens * kRecordColumns + own % 8 * 8);
  };
  const __nv_bfloat16* x_row = nullptr;  // of copy 0
  int tokens_left = 0;                   // of x, from there on
  const auto enter_token_tile = [&](int token_tile) {
    const int token = token_tile * kTokens + own_token(threadIdx.x);
    x_row = p.x + token * p.ldx + own_column(threadIdx.x);
    tokens_left = p.m - token;
  };
  if constexpr (!Config::kWhole) {
    enter_token_tile(static_cast<int>(blockIdx.y));
  }
  auto load_stage = [&](uint32_t tokens_to) {
    if constexpr (Config::kWhole) {
      if (line == line_end) {
        if (load_at == p.cuts.k_blocks) {
          W4A16Segment next;
          if (!ahead.next(p, &next)) {
            return;
          }
          load_at = 0;
          line = next.row_tile * p.cuts.k_blocks;
          enter_token_tile(next.token_tile);
        }
        line_end =
            min(line - load_at + p.cuts.k_blocks, p.cuts.unit_begin(p.cuts.unit_of(line) + 1));
      }
    }
    const int count = min(min(kBlocks, p.cuts.k_blocks - load_at), line_end - line);
    if (!Config::kWhole && count == 0) {
      return;
    }
    // Few registers are left beside 64 tokens: better computed again than kept.
    const uint32_t own = kTokens == 64 ? keep_in_register(threadIdx.x) : threadIdx.x;
    // A tile's records of a K64 block follow each other: copied as they lie.
    constexpr int kVectors = kTileRecordBytes / 16;
    const uint8_t* records = p.packed + static_cast<int64_t>(line) * kTileRecordBytes + own * 16;
    const uint32_t weights_to = tokens_to + Config::kWeightsAt + own * 16;
#pragma unroll
    for (int i = 0; i < (kBlocks * kVectors + Config::kThreads - 1) / Config::kThreads; ++i) {
      if (static_cast<int>(own) < count * kVectors - i * Config::kThreads) {
        copy_async_16(weights_to + i * Config::kThreads * 16, records + i * Config::kThreads * 16);
      }
    }
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      constexpr int kStep = kRows;
      const int token = i * kStep % kTokens;
      const int column = load_at * kRecordColumns + i * kStep / kTokens * kRecordColumns;
      const bool real = token < tokens_left && column < p.k - own_column(own);
      copy_async_16(tokens_to + own / 8 * 128 + ((own ^ own / 8) % 8) * 16 + i * kStep * 128,
                    real ? x_row + token * p.ldx + column : p.x,
                    real);
    }
    line += count;
    load_at += count;
    if (!Config::kWhole && load_at == p.cuts.k_blocks) {
      load_at = 0;
    }
  };

  // ---- products ----
  const uint32_t bias = scale_bias();
  const int first_set = Config::kSets == 1 ? warp / 4 : 0;
  const uint32_t codes_at =
      ring + Config::kWeightsAt + first_set * kRecordBytes + (warp % 4) * 512 + lane * 16;
  const uint32_t scales_at = ring + Config::kWeightsAt + first_set * kRecordBytes +
                             kRecordCodeBytes + (warp % 4) * 64 + (lane / 4) * 8;
  // Row l % 8 of 16-byte chunk l / 8, swizzled; chunks 4 to 7 are 64 bytes away.
  const uint32_t tokens_at = ring + (lane % 8) * 128 + ((lane / 8) ^ (lane % 8)) * 16 +
                             (Config::kSets == 1 ? 0 : warp / 4 * Config::kWarpChunks * 1024);
  const uint32_t tokens_high = tokens_at ^ 64;
  float acc[Config::kAccumulators];  // [set][chunk][4]
  auto multiply_block = [&](uint32_t weights, uint32_t tokens) {
    PackedLane packed[Config::kSets];
#pragma unroll
    for (int set = 0; set < Config::kSets; ++set) {
      packed[set] = {load_shared_16(codes_at + weights + set * kRecordBytes),
                     load_shared_8(scales_at + weights + set * kRecordBytes)};
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t a[Config::kSets][2][4];
#pragma unroll
      for (int set = 0; set < Config::kSets; ++set) {
        if (half == 0) {
          decode_first_half(packed[set], bias, a[set]);
        } else {
          decode_last_half(packed[set], bias, a[set]);
        }
      }
      const uint32_t from = (half == 0 ? tokens_at : tokens_high) + tokens;
#pragma unroll
      for (int j = 0; j < Config::kWarpChunks; ++j) {
        if (Config::kWarpChunks == 8 && j == 4) {
          __syncwarp();  // or all loads would be started before the first product: too many
                         // registers
        }
        const uint4 x = load_matrices(from + j * 1024);
#pragma unroll
        for (int set = 0; set < Config::kSets; ++set) {
          float(&d)[4] = *reinterpret_cast<float(*)[4]>(acc + 4 * (set * Config::kWarpChunks + j));
          mma_m16n8k16(d, a[set][0], x.x, x.y);
          mma_m16n8k16(d, a[set][1], x.z, x.w);
        }
      }
    }
  };

  const uint32_t ring_bytes = static_cast<uint32_t>(p.ring_bytes);
#pragma unroll 1
  for (uint32_t at = 0; at + Config::kStageBytes < ring_bytes; at += Config::kStageBytes) {
    load_stage(ring + at);
    copy_async_commit();
  }
  uint32_t at = 0;  // of the stage at hand
  W4A16Segment s;
  while (walk.next(p, &s)) {
    float total[Config::kWhole ? Config::kAccumulators : 1];
    if constexpr (Config::kWhole) {
#pragma unroll
      for (int i = 0; i < Config::kAccumulators; ++i) {
        total[i] = -0.0f;  // -0 + v is v for every v, so the first piece is taken as it is
      }
    }
    for (int begin = s.begin; begin < s.end;) {
      int end = s.end;
      if constexpr (Config::kWhole) {
        const int tile_begin = s.row_tile * p.cuts.k_blocks;
        end = min(end, p.cuts.unit_begin(p.cuts.unit_of(tile_begin + begin) + 1) - tile_begin);
      }
#pragma unroll
      for (int i = 0; i < Config::kAccumulators; ++i) {
        acc[i] = 0.0f;
      }
      for (int left = end - begin; left > 0; left -= kBlocks) {
        if (p.many_stages) {
          copy_async_wait<Config::kManyStages - 2>();
        } else {
          copy_async_wait<Config::kFewStages - 2>();
        }
        __syncthreads();  // everyone's copies are here, and nobody reads the stage before this one
        load_stage(ring + (at == 0 ? ring_bytes : at) - Config::kStageBytes);
        copy_async_commit();
        if (Config::kTokens < 64 && left >= kBlocks) {  // registers are short beside 64 tokens
#pragma unroll
          for (int b = 0; b < kBlocks; ++b) {
            multiply_block(at + b * kTileRecordBytes, at + b * Config::kTokenBytes);
          }
        } else {
#pragma unroll 1
          for (int b = 0; b < min(left, kBlocks); ++b) {
            multiply_block(at + b * kTileRecordBytes, at + b * Config::kTokenBytes);
          }
        }
        at = at + Config::kStageBytes == ring_bytes ? 0 : at + Config::kStageBytes;
      }
      if constexpr (Config::kWhole) {
#pragma unroll
        for (int i = 0; i < Config::kAccumulators; ++i) {
          total[i] += acc[i];
        }
      }
      begin = end;
    }

    // What follows is not to be computed ahead of the loops: registers are short there.
    const int own_thread = static_cast<int>(keep_in_register(threadIdx.x));
    const int row_tile = static_cast<int>(keep_in_register(s.row_tile));
    const int token_tile = static_cast<int>(keep_in_register(s.token_tile));
    // The thread that has a set's rows in the plain order of threads, and its first chunk there.
    const auto thread_of = [&](int set) {
      return Config::kSets == 1 ? own_thread : set * 128 + own_thread % 128;
    };
    const int first_chunk = Config::kSets == 1 ? 0 : own_thread / 128 * Config::kWarpChunks;
    const auto store = [&](const float* v) {
#pragma unroll
      for (int set = 0; set < Config::kSets; ++set) {
        store_tile<Config, Config::kWarpChunks>(p,
                                                thread_of(set),
                                                row_tile,
                                                token_tile,
                                                v + set * 4 * Config::kWarpChunks,
                                                first_chunk);
      }
    };
    if constexpr (Config::kWhole) {
      store(total);
    } else {
      if (s.begin == 0 && s.end == p.cuts.k_blocks) {
        store(acc);
        continue;
      }
      const W4A16Sharing sharing(p.cuts, p.by_units_per_block, row_tile);
      const int slot = static_cast<int>(blockIdx.x) + (s.begin == 0 ? p.cuts.units : 0);
#pragma unroll
      for (int set = 0; set < Config::kSets; ++set) {
        export_part<Config, Config::kWarpChunks>(
            p, thread_of(set), token_tile, slot, acc + set * 4 * Config::kWarpChunks, first_chunk);
      }
      __syncthreads();
      if (own_thread == 0) {
        uint32_t* counter = p.counters + token_tile * p.cuts.row_tiles + row_tile;
        const bool last =
            add_acquire_release(counter, 1) == static_cast<uint32_t>(sharing.blocks) - 1;
        store_shared_word(base, last ? 1 : 0);
        if (last) {
          *counter = 0;
        }
      }
      __syncthreads();
      if (load_shared_word(base) != 0) {
        reduce_parts<Config>(p, own_thread, row_tile, token_tile, sharing, 0, 1);
      }
    }
  }
}

template <W4A16Output kOutput>
struct W4A16Sm80Kernels {
  using Tokens8 = W4A16Sm80Config<8, 4, 2, 3, 1, false, kOutput>;
  using Tokens16 = W4A16Sm80Config<16, 4, 2, 3, 1, false, kOutput>;
  using Tokens32 = W4A16Sm80Config<32, 4, 2, 3, 1, false, kOutput>;
  using Tokens64 = W4A16Sm80Config<64, 2, 3, 4, 1, false, kOutput>;
  using Tokens64Whole = W4A16Sm80Config<64, 2, 3, 4, 1, true, kOutput>;
};

}  // namespace nibble::cuda
