// W4A16 in integers, as templates over a vector type with byte and word products. Included by ISA
// files only; everything has internal linkage.
//
// Activations come as int16 on a grid per block of 16 (gemm_grid.h), weights are twice their value,
// so a block's sum (below 2^23) is exact in int32 and in FP32. The only roundings are those of
// acc = fma(sum, w_scale * x_step, acc), blocks ascending, after every kRestTile blocks those of
// them whose rounding errors are a second block: one row, which takes x apart into two int8 digits
// for the byte products, and many rows, which use word products, give the same bits.
// Against FP32 products (gemm_kernel.h) one row needs 33 instead of 58 instructions for 128
// weights, and many rows use the integer units beside the two FMA units of today's AVX2 machines.
#pragma once

#include <cstdint>

#include "backends/cpu/gemm_grid.h"
#include "backends/cpu/gemm_kernel.h"
#include "backends/cpu/gemm_w4a4_kernel.h"
#include "backends/cpu/isa_abi.h"

namespace nibble::cpu {
namespace {

constexpr int kPairSteps16 = 8;  // steps of a block: two k's each
static_assert(kTileSteps / kPairSteps16 == kRestTile);

// acc += one block of a row of digits.
template <typename V>
inline __attribute__((always_inline)) void add_digits(const uint8_t* unit,
                                                      const int32_t* x,
                                                      const float* x_step,
                                                      const int32_t* x_sum,
                                                      typename V::Vec* acc) {
  using Vec = typename V::Vec;
  using Int = typename V::Int;
  constexpr int kSlice = W4a4Unit<V>::kSliceBytes;
  Int high[kVectors];
  Int low[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    high[v] = V::zero_int();
    low[v] = V::start_digits(x_sum);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    Int digits[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      digits[i] = V::broadcast_int(x + half * 4 + i);
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Int w[2];
      V::decode_bytes(unit + (half * kVectors + v) * kSlice, w);
      high[v] = V::dot(high[v], w[0], digits[0]);
      low[v] = V::dot(low[v], w[0], digits[1]);
      high[v] = V::dot(high[v], w[1], digits[2]);
      low[v] = V::dot(low[v], w[1], digits[3]);
    }
  }
  const Vec step = V::broadcast(x_step);
  for_vectors([&]<int v>() __attribute__((always_inline)) {
    const Vec scale = V::mul(V::template raw_scales<v>(unit + W4a4Unit<V>::kCodeBytes), step);
    acc[v] = V::fma(V::finish_digits(high[v], low[v], x_sum), scale, acc[v]);
  });
}

// The rests of a tile of one row, from block `first` on. Apart from the hot loop, which keeps acc
// in registers.
template <typename V>
__attribute__((noinline)) void add_rest_digits(const GemmTask& task,
                                               const uint8_t* units,
                                               int64_t first,
                                               typename V::Vec* acc) {
  for (uint32_t mask = task.rest_masks[first / kRestTile]; mask != 0; mask &= mask - 1) {
    const int64_t in_tile = __builtin_ctz(mask);
    const int64_t b = first + in_tile;
    add_digits<V>(units + in_tile * W4a4Unit<V>::kBytes,
                  reinterpret_cast<const int32_t*>(task.rest_lanes) + b * kPairSteps16,
                  task.rest_scales + b,
                  task.rest_sums + b,
                  acc);
  }
}

template <typename V>
void run_one_row_grid(const GemmTask& task, int64_t group_begin, int64_t group_end) {
  using Vec = typename V::Vec;
  const int64_t blocks = task.k / kBlockK;
  const uint8_t* unit = task.weights + group_begin * blocks * W4a4Unit<V>::kBytes;
  for (int64_t group = group_begin; group < group_end; ++group) {
    Vec acc[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      acc[v] = V::zero();
    }
    const auto* x = static_cast<const int32_t*>(task.x);
    for (int64_t first = 0; first < blocks; first += kRestTile) {
      const uint8_t* units = unit;
      const int64_t end = first + kRestTile < blocks ? first + kRestTile : blocks;
      for (int64_t b = first; b < end; ++b) {
#pragma GCC unroll 16
        for (int line = 0; line < W4a4Unit<V>::kBytes; line += 64) {
          __builtin_prefetch(unit + kPrefetchBytes + line, 0, kPrefetchLevel);
        }
        add_digits<V>(unit, x, task.x_scales + b, task.x_sums + b, acc);
        unit += W4a4Unit<V>::kBytes;
        x += kPairSteps16;
      }
      if (__builtin_expect(task.rest_masks[first / kRestTile] != 0, 0)) {
        Vec sums[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          sums[v] = acc[v];
        }
        add_rest_digits<V>(task, units, first, sums);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          acc[v] = sums[v];
        }
      }
    }
    alignas(64) float out[kGroupRows<V>];
    for (int v = 0; v < kVectors; ++v) {
      V::store(out + v * V::kLanes, acc[v]);
    }
    store_row<V>(task, 0, group * kGroupRows<V>, out);
  }
}

// As Tile in gemm_kernel.h with two k's a lane.
template <typename V>
struct PairTile {
  alignas(64) float w[kTileSteps * kGroupRows<V>];
  alignas(64) float scales[kTileSteps / kPairSteps16 * kGroupRows<V>];
};

template <typename V>
void decode_pair_tile(const uint8_t* unit, int blocks, PairTile<V>& tile) {
  constexpr int kRows = kGroupRows<V>;
  constexpr int kSlice = W4a4Unit<V>::kSliceBytes;
  for (int b = 0; b < blocks; ++b) {
    for (int slice = 0; slice < 2 * kVectors; ++slice) {
      typename V::Int w[4];
      V::decode_pairs16(unit + slice * kSlice, w);
      const int step = b * kPairSteps16 + slice / kVectors * 4;
      for (int s = 0; s < 4; ++s) {
        V::store_int(tile.w + (step + s) * kRows + slice % kVectors * V::kLanes, w[s]);
      }
    }
    for_vectors([&]<int v>() {
      V::store(tile.scales + b * kRows + v * V::kLanes,
               V::template raw_scales<v>(unit + W4a4Unit<V>::kCodeBytes));
    });
    unit += W4a4Unit<V>::kBytes;
  }
}

// Blocks of the tile from first_block on, vectors from `first` on, times rows of records
// (kGridRecord words a block, see GemmTask::x). Not inlined: the registers of the caller would be
// spilled in it.
template <typename V, int kRowsX, int kVecs>
__attribute__((noinline)) void micro_grid(const PairTile<V>& tile,
                                          int64_t first_block,
                                          int first,
                                          const int32_t* const* rows,
                                          float* acc,
                                          int blocks) {
  constexpr int kRows = kGroupRows<V>;
  const float* w = tile.w + first_block * kPairSteps16 * kRows + first * V::kLanes;
  const float* scales = tile.scales + first_block * kRows + first * V::kLanes;
  float* to = acc + first * V::kLanes;
  const int32_t* x[kRowsX];
#pragma GCC unroll 6
  for (int r = 0; r < kRowsX; ++r) {
    x[r] = rows[r];
  }
  for (int64_t at = 0; at < static_cast<int64_t>(blocks) * kGridRecord; at += kGridRecord) {
    // Otherwise the compiler keeps a register, or a place on the stack, for each address of acc.
    asm("" : "+r"(to));
    typename V::Int sum[kRowsX][kVecs];
#pragma GCC unroll 8
    for (int s = 0; s < kPairSteps16; ++s) {
      typename V::Int wv[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        wv[v] = V::load_int(w + v * V::kLanes);
      }
#pragma GCC unroll 6
      for (int r = 0; r < kRowsX; ++r) {
        const typename V::Int xv = V::broadcast_int(x[r] + at + s);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          // Sums that begin as copies of one register of zeros cost up to an instruction of the
          // multiplying units each.
          sum[r][v] = s == 0 ? V::first_pairs16(wv[v], xv) : V::dot_pairs16(sum[r][v], wv[v], xv);
        }
      }
      w += kRows;
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRowsX; ++r) {
      const typename V::Vec x_step = V::bits_as_float(V::broadcast_int(x[r] + at + kPairSteps16));
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        float* out = to + r * kRows + v * V::kLanes;
        const typename V::Vec scale = V::mul(V::load(scales + v * V::kLanes), x_step);
        V::store(out, V::fma(V::to_float(sum[r][v]), scale, V::load(out)));
      }
    }
    scales += kRows;
  }
}

// The rests of a row of x in a tile from `block` on.
template <typename V>
__attribute__((noinline)) void add_rest_pairs(
    const PairTile<V>& tile, const uint32_t* rests, uint32_t mask, int64_t block, float* acc) {
  for (; mask != 0; mask &= mask - 1) {
    const int64_t in_tile = __builtin_ctz(mask);
    const auto* record = reinterpret_cast<const int32_t*>(rests + (block + in_tile) * kGridRecord);
    micro_grid<V, 1, 4>(tile, in_tile, 0, &record, acc, 1);
  }
}

template <typename V>
void run_many_rows_grid(const GemmTask& task, int64_t group_begin, int64_t group_end) {
  const int64_t blocks = task.k / kBlockK;
  const int64_t row_words = blocks * kGridRecord;
  const int64_t rest_tiles = (blocks + kRestTile - 1) / kRestTile;
  run_tiles<V, PairTile<V>>(
      task,
      group_begin,
      group_end,
      blocks,
      kTileSteps / kPairSteps16,
      W4a4Unit<V>::kBytes,
      decode_pair_tile<V>,
      [&]<int kRowsX>(const PairTile<V>& tile, int64_t row, int64_t block, int count, float* acc) {
        int64_t places[kRowsX];
        const int32_t* x[kRowsX];
        uint32_t any = 0;
#pragma GCC unroll 6
        for (int r = 0; r < kRowsX; ++r) {
          places[r] = task.x_rows == nullptr ? row + r : task.x_rows[row + r];
          x[r] = static_cast<const int32_t*>(task.x) + places[r] * row_words + block * kGridRecord;
          any |= task.rest_masks[places[r] * rest_tiles + block / kRestTile];
        }
        if constexpr (V::kLanes == 8 && kRowsX > 3) {
          micro_grid<V, kRowsX, 2>(tile, 0, 0, x, acc, count);
          micro_grid<V, kRowsX, 2>(tile, 0, 2, x, acc, count);
        } else {
          micro_grid<V, kRowsX, 4>(tile, 0, 0, x, acc, count);
        }
        if (__builtin_expect(any != 0, 0)) {
          for (int r = 0; r < kRowsX; ++r) {
            add_rest_pairs<V>(tile,
                              task.rest_lanes + places[r] * row_words,
                              task.rest_masks[places[r] * rest_tiles + block / kRestTile],
                              block,
                              acc + r * kGroupRows<V>);
          }
        }
      });
}

template <typename V>
void run_gemm_grid(const GemmTask& task, int64_t group_begin, int64_t group_end) {
  if (task.rows == 1 && task.x_rows == nullptr) {
    run_one_row_grid<V>(task, group_begin, group_end);
  } else {
    run_many_rows_grid<V>(task, group_begin, group_end);
  }
}

}  // namespace
}  // namespace nibble::cpu
