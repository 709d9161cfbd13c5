// The W4A4 GEMM as templates over a vector type: exact integer dot products of E2M1 codes in blocks
// of 16, scaled in FP32. Included by ISA files only; everything has internal linkage.
//
// A block's integer sum times both block scales is exact in FP32 (12 + 8 significant bits), so the
// only roundings are those of acc = fma(sum, w_scale * x_scale, acc), blocks ascending: the same
// bits on every ISA and in the scalar oracle. Structure as in gemm_kernel.h.
#pragma once

#include <cstdint>

#include "backends/cpu/gemm_kernel.h"
#include "backends/cpu/isa_abi.h"

namespace nibble::cpu {
namespace {

constexpr int kBlockSteps = 4;  // a step is four k's

template <typename V>
struct W4a4Unit {  // per block of 16 k: 2 halves x 4 vectors of codes, then the group's scales
  static constexpr int kSliceBytes = V::kLanes * 4;
  static constexpr int kCodeBytes = 2 * kVectors * kSliceBytes;
  static constexpr int kBytes = kCodeBytes + kGroupRows<V>;
};

template <typename V>
void decode_block(const uint8_t* unit, int v, typename V::Int* w) {
  constexpr int kSlice = W4a4Unit<V>::kSliceBytes;
  V::decode_bytes(unit + v * kSlice, w);
  V::decode_bytes(unit + (kVectors + v) * kSlice, w + 2);
}

template <typename V, int kVector>
typename V::Vec unit_scales(const uint8_t* unit) {
  return V::template block_scales<kVector>(unit + W4a4Unit<V>::kCodeBytes);
}

template <typename V>
void run_one_row_w4a4(const GemmTask& task, int64_t group_begin, int64_t group_end) {
  using Vec = typename V::Vec;
  const int64_t blocks = task.k / kBlockK;
  const auto* x = static_cast<const int32_t*>(task.x);
  const uint8_t* unit = task.weights + group_begin * blocks * W4a4Unit<V>::kBytes;
  for (int64_t group = group_begin; group < group_end; ++group) {
    Vec acc[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      acc[v] = V::zero();
    }
    for (int64_t b = 0; b < blocks; ++b) {
#pragma GCC unroll 16
      for (int line = 0; line < W4a4Unit<V>::kBytes; line += 64) {
        __builtin_prefetch(unit + kPrefetchBytes + line, 0, kPrefetchLevel);
      }
      const Vec x_scale = V::broadcast(task.x_scales + b);
      for_vectors([&]<int v>() __attribute__((always_inline)) {
        typename V::Int w[kBlockSteps];
        decode_block<V>(unit, v, w);
        typename V::Int sum = V::start(task.x_sums + b);
#pragma GCC unroll 4
        for (int s = 0; s < kBlockSteps; ++s) {
          sum = V::dot(sum, w[s], V::broadcast_int(x + b * kBlockSteps + s));
        }
        acc[v] = V::fma(V::finish(sum), V::mul(unit_scales<V, v>(unit), x_scale), acc[v]);
      });
      unit += W4a4Unit<V>::kBytes;
    }
    alignas(64) float out[kGroupRows<V>];
    for (int v = 0; v < kVectors; ++v) {
      V::store(out + v * V::kLanes, acc[v]);
    }
    store_row<V>(task, 0, group * kGroupRows<V>, out);
  }
}

// As Tile in gemm_kernel.h with four k's a lane.
template <typename V>
struct ByteTile {
  alignas(64) float w[kTileSteps * kGroupRows<V>];
  alignas(64) float scales[kTileSteps / kBlockSteps * kGroupRows<V>];
};

template <typename V>
void decode_byte_tile(const uint8_t* unit, int blocks, ByteTile<V>& tile) {
  constexpr int kRows = kGroupRows<V>;
  for (int b = 0; b < blocks; ++b) {
    for (int v = 0; v < kVectors; ++v) {
      typename V::Int w[kBlockSteps];
      decode_block<V>(unit, v, w);
      for (int s = 0; s < kBlockSteps; ++s) {
        V::store_int(tile.w + (b * kBlockSteps + s) * kRows + v * V::kLanes, w[s]);
      }
    }
    for_vectors([&]<int v>() {
      V::store(tile.scales + b * kRows + v * V::kLanes, unit_scales<V, v>(unit));
    });
    unit += W4a4Unit<V>::kBytes;
  }
}

// x: [steps, kRowsX]; x_scales and x_sums: [blocks, kRowsX].
template <typename V, int kRowsX, int kVecs>
void micro_w4a4(const ByteTile<V>& tile,
                int first,
                const int32_t* x,
                const float* x_scales,
                const int32_t* x_sums,
                float* acc,
                int blocks) {
  constexpr int kRows = kGroupRows<V>;
  const float* w = tile.w + first * V::kLanes;
  const float* scales = tile.scales + first * V::kLanes;
  float* to = acc + first * V::kLanes;
  for (int b = 0; b < blocks; ++b) {
    typename V::Int sum[kRowsX][kVecs];
#pragma GCC unroll 6
    for (int r = 0; r < kRowsX; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        sum[r][v] = V::start(x_sums + r);
      }
    }
#pragma GCC unroll 4
    for (int s = 0; s < kBlockSteps; ++s) {
      typename V::Int wv[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        wv[v] = V::load_int(w + v * V::kLanes);
      }
#pragma GCC unroll 6
      for (int r = 0; r < kRowsX; ++r) {
        const typename V::Int xv = V::broadcast_int(x + r);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          sum[r][v] = V::dot(sum[r][v], wv[v], xv);
        }
      }
      w += kRows;
      x += kRowsX;
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRowsX; ++r) {
      const typename V::Vec x_scale = V::broadcast(x_scales + r);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        float* at = to + r * kRows + v * V::kLanes;
        V::store(at,
                 V::fma(V::finish(sum[r][v]),
                        V::mul(V::load(scales + v * V::kLanes), x_scale),
                        V::load(at)));
      }
    }
    scales += kRows;
    x_scales += kRowsX;
    x_sums += kRowsX;
  }
}

template <typename V>
void run_many_rows_w4a4(const GemmTask& task, int64_t group_begin, int64_t group_end) {
  const int64_t blocks = task.k / kBlockK;
  run_tiles<V, ByteTile<V>>(
      task,
      group_begin,
      group_end,
      blocks,
      kTileSteps / kBlockSteps,
      W4a4Unit<V>::kBytes,
      decode_byte_tile<V>,
      [&]<int kRowsX>(const ByteTile<V>& tile, int64_t row, int64_t block, int count, float* acc) {
        const int64_t at = row * blocks + block * kRowsX;
        const int32_t* x = static_cast<const int32_t*>(task.x) + at * kBlockSteps;
        if constexpr (V::kLanes == 8 && kRowsX > 3) {
          micro_w4a4<V, kRowsX, 2>(tile, 0, x, task.x_scales + at, task.x_sums + at, acc, count);
          micro_w4a4<V, kRowsX, 2>(tile, 2, x, task.x_scales + at, task.x_sums + at, acc, count);
        } else {
          micro_w4a4<V, kRowsX, 4>(tile, 0, x, task.x_scales + at, task.x_sums + at, acc, count);
        }
      });
}

template <typename V>
void run_gemm_w4a4(const GemmTask& task, int64_t group_begin, int64_t group_end) {
  if (task.rows == 1) {
    run_one_row_w4a4<V>(task, group_begin, group_end);
  } else {
    run_many_rows_w4a4<V>(task, group_begin, group_end);
  }
}

}  // namespace
}  // namespace nibble::cpu
