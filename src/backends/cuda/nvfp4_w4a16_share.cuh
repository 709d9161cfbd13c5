#pragma once
// How the W4A16 kernels deal out K64 blocks of tiles and put partial sums together: the same for
// every architecture, so that all of them add in the same order. A kernel's Config has kOutput,
// kTokens (of a tile), kChunks (8 tokens each), kReduceWidth and kReduceDepth (chunks and parts
// that are loaded at a time). 256 threads have accumulators; warp w has rows 16 w.

#include <cstdint>

#include <cuda_bf16.h>

#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_w4a16_cuts.h"
#include "backends/cuda/nvfp4_w4a16_store.cuh"

namespace nibble::cuda {

/// A run of K64 blocks of one tile.
struct W4A16Segment {
  int row_tile;
  int token_tile;
  int begin, end;  // K64 blocks
  bool last;       // of this block's shared tiles for this token tile
  int line_row;    // its place in the line of shared tiles; the row tile but where kTail
};

/// The i-th of all tiles: token tiles of a group next to each other, because concurrent blocks then
/// share weights and tokens in L2.
__device__ __forceinline__ void find_tile(const W4A16Params& p,
                                          int index,
                                          int* row_tile,
                                          int* token_tile) {
  const int group_size = p.cuts.row_tiles * p.token_group;
  const int group = index / group_size;
  const int inside = index - group * group_size;
  const int tokens = min(p.token_group, p.token_tiles - group * p.token_group);
  *row_tile = inside / tokens;
  *token_tile = group * p.token_group + inside - *row_tile * tokens;
}

/// The cuts of the line of shared tiles.
template <bool kTail>
__device__ __forceinline__ const W4A16Cuts& line_cuts(const W4A16Params& p) {
  return kTail ? p.line : p.cuts;
}

/// The segments of a thread block, in order; producers and consumers walk through the same ones.
/// kSerial: token tiles in turn, and whole tiles where p.whole_tiles; kOnlyWhole: always. kTail:
/// the first p.first_tiles tiles whole, those of the last wave as a line of shared tiles (p.line).
template <bool kSerial, bool kOnlyWhole = false, bool kTail = false>
struct W4A16Walk {
  int token_tile;
  int position, stop;  // shared tiles: K64 blocks, all row tiles in a row
  int index;           // whole tiles

  __device__ __forceinline__ explicit W4A16Walk(const W4A16Params& p)
      : token_tile(blockIdx.y), index(blockIdx.x) {
    if constexpr (!kOnlyWhole) {
      restart(p);
    }
  }
  __device__ __forceinline__ void restart(const W4A16Params& p) {
    const int unit = blockIdx.x * p.units_per_block;
    const W4A16Cuts& cuts = line_cuts<kTail>(p);
    position = cuts.unit_begin(min(cuts.units, unit));
    stop = cuts.unit_begin(min(cuts.units, unit + p.units_per_block));
  }
  __device__ __forceinline__ bool next(const W4A16Params& p, W4A16Segment* s) {
    if (kOnlyWhole || kTail || (kSerial && p.whole_tiles)) {
      if (index < (kTail ? p.first_tiles : p.cuts.row_tiles * p.token_tiles)) {
        find_tile(p, index, &s->row_tile, &s->token_tile);
        s->begin = 0;
        s->end = p.cuts.k_blocks;
        s->last = false;
        s->line_row = s->row_tile;
        index += gridDim.x;
        return true;
      }
      if (!kTail || position == stop) {
        return false;
      }
      s->line_row = position / p.cuts.k_blocks;
      find_tile(p, p.first_tiles + s->line_row, &s->row_tile, &s->token_tile);
      const int line_begin = s->line_row * p.cuts.k_blocks;
      s->begin = position - line_begin;
      s->end = min(stop - line_begin, p.cuts.k_blocks);
      position = line_begin + s->end;
      s->last = position == stop;
      return true;
    }
    if (position == stop) {
      if (!kSerial) {
        return false;  // blockIdx.y is the token tile
      }
      token_tile += gridDim.y;
      if (token_tile >= p.token_tiles) {
        return false;
      }
      restart(p);
    }
    s->row_tile = position / p.cuts.k_blocks;
    s->line_row = s->row_tile;
    s->token_tile = token_tile;
    const int tile_begin = s->row_tile * p.cuts.k_blocks;
    s->begin = position - tile_begin;
    s->end = min(stop - tile_begin, p.cuts.k_blocks);
    position = tile_begin + s->end;
    s->last = position == stop;
    return true;
  }
};

/// Who contributes what to a shared tile. Part 0 is the sum of the pieces of the first block, the
/// other parts are the pieces of the blocks after it.
struct W4A16Sharing {
  int first_block;
  int blocks;
  int parts;
  int first_unit;  // of part 1

  __device__ __forceinline__ W4A16Sharing(const W4A16Cuts& cuts,
                                          int units_per_block,
                                          int row_tile) {
    const int begin = row_tile * cuts.k_blocks;
    const int last_unit = cuts.unit_of(begin + cuts.k_blocks - 1);
    first_block = cuts.unit_of(begin) / units_per_block;
    blocks = last_unit / units_per_block - first_block + 1;
    first_unit = (first_block + 1) * units_per_block;
    parts = 1 + max(0, last_unit + 1 - first_unit);
  }
  /// Workspace slot of a part: a unit's own, or the block's for its first pieces.
  __device__ __forceinline__ int slot(const W4A16Cuts& cuts, int part) const {
    return part == 0 ? cuts.units + first_block : first_unit + part - 1;
  }
};

// ---- partial sums of shared tiles ----
// A part is 2 x kChunks x
// 128 x 16 bytes: warpgroup, chunk of 8 tokens, thread, its four accumulators. The thread that adds
// them up has the same place in its block as the one that wrote them.

template <class Config>
__device__ __forceinline__ uint8_t* part_address(const W4A16Params& p,
                                                 int thread,
                                                 int token_tile,
                                                 int slot) {
  const int64_t part =
      Config::kTail ? slot : static_cast<int64_t>(token_tile) * (p.cuts.units + gridDim.x) + slot;
  return p.workspace + (part * 2 + thread / 128) * (Config::kChunks * 2048) + (thread % 128) * 16;
}

/// kCount chunks of a part, from first_chunk on.
template <class Config, int kCount = Config::kChunks>
__device__ __forceinline__ void export_part(const W4A16Params& p,
                                            int thread,
                                            int token_tile,
                                            int slot,
                                            const float* v,
                                            int first_chunk = 0) {
  uint8_t* to = part_address<Config>(p, thread, token_tile, slot) + first_chunk * 2048;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    __stcg(reinterpret_cast<float4*>(to + j * 2048),
           make_float4(v[4 * j], v[4 * j + 1], v[4 * j + 2], v[4 * j + 3]));
  }
}

/// Row of the tile that a thread's accumulators begin with: features 2r and 2r + 1 of its
/// warp's 16.
__device__ __forceinline__ int first_row(int thread) {
  return thread / 32 * 16 + thread % 32 / 4 * 2;
}

/// Adds the parts of chunks first, first + step, ... of a tile in order and stores them.
template <class Config>
__device__ __forceinline__ void reduce_parts(const W4A16Params& p,
                                             int thread,
                                             int row_tile,
                                             int token_tile,
                                             const W4A16Sharing& sharing,
                                             int first,
                                             int step) {
  constexpr int kWidth = Config::kReduceWidth;
  constexpr int kDepth = Config::kReduceDepth;
  W4A16Store<Config::kOutput> output;
  output.load(p, row_tile * kTileRows + first_row(thread));
  const int token0 = token_tile * Config::kTokens + thread % 4 * 2;
  const bool plain = W4A16Store<Config::kOutput>::plain(p, row_tile);
#pragma unroll 1
  for (int j0 = first; j0 < Config::kChunks; j0 += kWidth * step) {
    float4 sum[kWidth];
    const uint8_t* from =
        part_address<Config>(p, thread, token_tile, sharing.slot(line_cuts<Config::kTail>(p), 0)) +
        j0 * 2048;
#pragma unroll
    for (int w = 0; w < kWidth; ++w) {
      if (j0 + w * step < Config::kChunks) {
        sum[w] = __ldcg(reinterpret_cast<const float4*>(from + w * step * 2048));
      }
    }
#pragma unroll 1
    for (int i0 = 1; i0 < sharing.parts; i0 += kDepth) {
      float4 part[kDepth][kWidth];
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const uint8_t* at =
            part_address<Config>(
                p, thread, token_tile, sharing.slot(line_cuts<Config::kTail>(p), i0 + d)) +
            j0 * 2048;
#pragma unroll
        for (int w = 0; w < kWidth; ++w) {
          if (i0 + d < sharing.parts && j0 + w * step < Config::kChunks) {
            part[d][w] = __ldcg(reinterpret_cast<const float4*>(at + w * step * 2048));
          }
        }
      }
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        if (i0 + d < sharing.parts) {
#pragma unroll
          for (int w = 0; w < kWidth; ++w) {
            sum[w].x += part[d][w].x;
            sum[w].y += part[d][w].y;
            sum[w].z += part[d][w].z;
            sum[w].w += part[d][w].w;
          }
        }
      }
    }
#pragma unroll
    for (int w = 0; w < kWidth; ++w) {
      if (j0 + w * step < Config::kChunks) {
        const int token = token0 + 8 * (j0 + w * step);
        if (plain) {
          output.store_plain(p, token, sum[w]);
        } else {
          output.store(p, token, sum[w].x, sum[w].y, sum[w].z, sum[w].w);
        }
      }
    }
  }
}

/// Stores kCount chunks, from first_chunk on, of a tile that this thread block has summed up alone.
template <class Config, int kCount = Config::kChunks>
__device__ __forceinline__ void store_tile(const W4A16Params& p,
                                           int thread,
                                           int row_tile,
                                           int token_tile,
                                           const float* result,
                                           int first_chunk = 0) {
  W4A16Store<Config::kOutput> output;
  output.load(p, row_tile * kTileRows + first_row(thread));
  const int token0 = token_tile * Config::kTokens + 8 * first_chunk + thread % 4 * 2;
  const bool plain = W4A16Store<Config::kOutput>::plain(p, row_tile);
  if (plain && (token_tile + 1) * Config::kTokens <= p.m) {
    output.template store_all<kCount>(p, token0, result);
  } else if (plain) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float* v = result + 4 * j;
      output.store_plain(p, token0 + 8 * j, make_float4(v[0], v[1], v[2], v[3]));
    }
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      output.store(p,
                   token0 + 8 * j,
                   result[4 * j],
                   result[4 * j + 1],
                   result[4 * j + 2],
                   result[4 * j + 3]);
    }
  }
}

}  // namespace nibble::cuda
