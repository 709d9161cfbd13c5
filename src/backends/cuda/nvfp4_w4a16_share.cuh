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
  const int group = p.by_group.divide(index);
  const int inside = index - group * group_size;
  const int tokens = min(p.token_group, p.token_tiles - group * p.token_group);
#if __CUDA_ARCH__ < 900
  *row_tile = inside / tokens;
#else
  *row_tile =
      tokens == p.token_group ? p.by_group_tokens.divide(inside) : p.by_last_tokens.divide(inside);
#endif
  *token_tile = group * p.token_group + inside - *row_tile * tokens;
}

/// The cuts of the line of shared tiles.
template <bool kLine>
__device__ __forceinline__ const W4A16DeviceCuts& line_cuts(const W4A16Params& p) {
  return kLine ? p.line : p.cuts;
}

/// Shared: of the token tile blockIdx.y. SharedInTurn: of all token tiles in turn. Whole: whole
/// tiles. WholeThenLine: the first p.first_tiles tiles whole, the others as a line of shared tiles
/// (p.line). LineAroundWhole: the same, but what this block has of the shared tiles comes first,
/// except for a tile's last pieces, which come at the end, so that the sums that these are added to
/// are there by then.
enum class W4A16Deal : uint8_t { Shared, SharedInTurn, Whole, WholeThenLine, LineAroundWhole };

constexpr bool has_line(W4A16Deal deal) {
  return deal == W4A16Deal::WholeThenLine || deal == W4A16Deal::LineAroundWhole;
}

/// The segments of a thread block, in order; producers and consumers walk through the same ones.
template <W4A16Deal kDeal>
struct W4A16Walk {
  int token_tile;
  int position, stop;  // shared tiles: K64 blocks, all row tiles in a row
  int index;           // whole tiles
  int last_position;   // kAround: the last pieces of a tile, up to its end; -1 if none are left

  static constexpr bool kLine = has_line(kDeal);
  static constexpr bool kAround = kDeal == W4A16Deal::LineAroundWhole;

  __device__ __forceinline__ explicit W4A16Walk(const W4A16Params& p)
      : token_tile(blockIdx.y), index(blockIdx.x), last_position(-1) {
    if constexpr (kDeal != W4A16Deal::Whole) {
      restart(p);
    }
    if constexpr (kAround) {
      // A block has fewer pieces than a tile: the last ones of a tile, or the first ones, or both.
      const int tile_end = (p.cuts.row_tile_of(position) + 1) * p.cuts.k_blocks;
      if (position < stop && stop >= tile_end) {
        last_position = position;
        position = tile_end;
      }
    }
  }
  __device__ __forceinline__ void restart(const W4A16Params& p) {
    const int unit = blockIdx.x * p.units_per_block;
    const W4A16DeviceCuts& cuts = line_cuts<kLine>(p);
    position = cuts.unit_begin(min(cuts.units, unit));
    stop = cuts.unit_begin(min(cuts.units, unit + p.units_per_block));
  }
  __device__ __forceinline__ void whole_tile(const W4A16Params& p, W4A16Segment* s) {
    find_tile(p, index, &s->row_tile, &s->token_tile);
    s->begin = 0;
    s->end = p.cuts.k_blocks;
    s->last = false;
    s->line_row = s->row_tile;
    index += gridDim.x;
  }
  /// A run of the line of shared tiles.
  __device__ __forceinline__ void shared_tile(const W4A16Params& p,
                                              int from,
                                              int to,
                                              W4A16Segment* s) {
    s->line_row = p.cuts.row_tile_of(from);
    find_tile(p, p.first_tiles + s->line_row, &s->row_tile, &s->token_tile);
    const int line_begin = s->line_row * p.cuts.k_blocks;
    s->begin = from - line_begin;
    s->end = min(to - line_begin, p.cuts.k_blocks);
  }
  __device__ __forceinline__ bool next(const W4A16Params& p, W4A16Segment* s) {
    if constexpr (kAround) {
      const bool early = position != stop;
      const bool whole = !early && index < p.first_tiles;
      if (!early && !whole && last_position < 0) {
        return false;
      }
      if (whole) {
        whole_tile(p, s);
      } else {
        shared_tile(p, early ? position : last_position, early ? stop : p.line.total(), s);
        last_position = early ? last_position : -1;
        position = stop;
      }
      s->last = false;
      return true;
    } else if constexpr (kLine) {
      if (index < p.first_tiles) {
        whole_tile(p, s);
        return true;
      }
      if (position == stop) {
        return false;
      }
      shared_tile(p, position, stop, s);
      position = s->line_row * p.cuts.k_blocks + s->end;
      s->last = position == stop;
      return true;
    }
    if constexpr (kDeal == W4A16Deal::Whole) {
      if (index >= p.cuts.row_tiles * p.token_tiles) {
        return false;
      }
      whole_tile(p, s);
      return true;
    }
    if (position == stop) {
      if (kDeal == W4A16Deal::Shared) {
        return false;
      }
      token_tile += gridDim.y;
      if (token_tile >= p.token_tiles) {
        return false;
      }
      restart(p);
    }
    s->row_tile = p.cuts.row_tile_of(position);
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

  __device__ __forceinline__ W4A16Sharing(const W4A16DeviceCuts& cuts,
                                          const FastDivisor& units_per_block,
                                          int row_tile) {
    const int begin = row_tile * cuts.k_blocks;
    const int last_unit = cuts.unit_of(begin + cuts.k_blocks - 1);
    first_block = units_per_block.divide(cuts.unit_of(begin));
    blocks = units_per_block.divide(last_unit) - first_block + 1;
    first_unit = (first_block + 1) * static_cast<int>(units_per_block.divisor);
    parts = 1 + max(0, last_unit + 1 - first_unit);
  }
  /// Workspace slot of a part: a unit's own, or the block's for its first pieces.
  __device__ __forceinline__ int slot(const W4A16DeviceCuts& cuts, int part) const {
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
      Config::kLine ? slot : static_cast<int64_t>(token_tile) * (p.cuts.units + gridDim.x) + slot;
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
        part_address<Config>(p, thread, token_tile, sharing.slot(line_cuts<Config::kLine>(p), 0)) +
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
                p, thread, token_tile, sharing.slot(line_cuts<Config::kLine>(p), i0 + d)) +
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
