// The W4A4 GEMM as templates over a vector type: exact integer dot products of E2M1 codes in blocks
// of 16, scaled in FP32. Included by ISA files only; everything has internal linkage.
//
// A block's integer sum times both block scales is exact in FP32 (12 + 8 significant bits), so the
// only roundings are those of acc = fma(sum, w_scale * x_scale, acc), blocks ascending: the same
// bits on every ISA and in the scalar oracle. Structure as in gemm_kernel.h.
//
// Where a product adds pairs of bytes into 16-bit words (AVX2), a lane of many rows holds two k's
// of each of two blocks (V::kLaneBlocks): a word then sums a whole block (below 2^13), both blocks
// share the additions and the load and store of acc, and 22 instead of 26 instructions that
// compute remain for 256 weights.
#pragma once

#include <cstdint>

#include "backends/cpu/gemm_kernel.h"
#include "backends/cpu/isa_abi.h"

namespace nibble::cpu {
namespace {

constexpr int kBlockSteps = 4;  // steps of a block: four k's each, or twice as many of two

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

// Block scales times kScaleUnits: at most 448 * 64, so those without a fraction are int16.
constexpr float kScaleUnits = 64.0f;
constexpr float kFromRawScales = 0x1p117f * kScaleUnits;

template <typename V, int kVector>
typename V::Vec unit_scales(const uint8_t* unit) {
  return V::mul(V::template raw_scales<kVector>(unit + W4a4Unit<V>::kCodeBytes),
                V::broadcast(&kFromRawScales));
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

// As Tile in gemm_kernel.h with four k's a lane, of V::kLaneBlocks blocks.
template <typename V>
struct ByteTile {
  alignas(64) float w[kTileSteps * kGroupRows<V>];
  // Or int16 in the lane's word of their block, the other word zero.
  alignas(64) float scales[kTileSteps / kBlockSteps * kGroupRows<V>];
  bool word_scales;
};

// Blocks beyond the last of an odd number become zeros.
template <typename V>
void decode_byte_tile(const uint8_t* unit, int blocks, ByteTile<V>& tile) {
  constexpr int kRows = kGroupRows<V>;
  constexpr int kLane = V::kLaneBlocks;
  float* w = tile.w;
  for (int first = 0; first < blocks; first += kLane) {
    for (int v = 0; v < kVectors; ++v) {
      typename V::Int codes[kLane * kBlockSteps];
      for (int b = 0; b < kLane; ++b) {
        typename V::Int* block = codes + b * kBlockSteps;
        if (first + b < blocks) {
          decode_block<V>(unit + b * W4a4Unit<V>::kBytes, v, block);
        } else {
          block[0] = block[1] = block[2] = block[3] = V::zero_int();
        }
      }
      V::join_blocks(codes);
      for (int s = 0; s < kLane * kBlockSteps; ++s) {
        V::store_int(w + s * kRows + v * V::kLanes, codes[s]);
      }
    }
    w += kLane * kBlockSteps * kRows;
    for (int b = 0; b < kLane; ++b) {
      for_vectors([&]<int v>() {
        V::store(tile.scales + (first + b) * kRows + v * V::kLanes,
                 first + b < blocks ? unit_scales<V, v>(unit) : V::zero());
      });
      unit += W4a4Unit<V>::kBytes;
    }
  }
  tile.word_scales = false;
  if constexpr (kLane == 2) {
    const int vectors = (blocks + 1) / 2 * 2 * kVectors;
    tile.word_scales = true;
    for (int i = 0; i < vectors && tile.word_scales; ++i) {
      tile.word_scales = V::is_whole(V::load(tile.scales + i * V::kLanes));
    }
    for (int i = 0; i < vectors && tile.word_scales; ++i) {
      float* at = tile.scales + i * V::kLanes;
      V::store_int(at, V::word_of_block(V::load(at), i / kVectors % 2));
    }
  }
}

// x: [steps, kRowsX]; x_scales: [blocks, kRowsX]; x_sums: [lane_blocks, kRowsX], where
// lane_blocks counts V::kLaneBlocks blocks at a time.
// Not inlined: the registers of the caller would be spilled in it.
template <typename V, int kRowsX, int kVecs, bool kWordScales>
__attribute__((noinline)) void micro_w4a4(const ByteTile<V>& tile,
                                          int first,
                                          const int32_t* x,
                                          const float* x_scales,
                                          const int32_t* x_sums,
                                          float* acc,
                                          int lane_blocks) {
  constexpr int kRows = kGroupRows<V>;
  constexpr int kLane = V::kLaneBlocks;
  const float* w = tile.w + first * V::kLanes;
  const float* scales = tile.scales + first * V::kLanes;
  float* to = acc + first * V::kLanes;
  for (int i = 0; i < lane_blocks; ++i) {
    // Otherwise the compiler keeps a register, or a place on the stack, for each address of acc.
    asm("" : "+r"(to));
    typename V::Int sum[kRowsX][kVecs];
#pragma GCC unroll 6
    for (int r = 0; r < kRowsX; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        sum[r][v] = V::start(x_sums + r);
      }
    }
#pragma GCC unroll 8
    for (int s = 0; s < kLane * kBlockSteps; ++s) {
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
      typename V::Vec x_scale[kLane];
#pragma GCC unroll 2
      for (int b = 0; b < kLane; ++b) {
        x_scale[b] = V::broadcast(x_scales + b * kRowsX + r);
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        float* at = to + r * kRows + v * V::kLanes;
        typename V::Vec total = V::load(at);
#pragma GCC unroll 2
        for (int b = 0; b < kLane; ++b) {
          const float* scale = scales + b * kRows + v * V::kLanes;
          if constexpr (kWordScales) {
            total = V::fma(V::scale_block(sum[r][v], V::load_int(scale)), x_scale[b], total);
          } else {
            total =
                V::fma(V::finish_block(sum[r][v], b), V::mul(V::load(scale), x_scale[b]), total);
          }
        }
        V::store(at, total);
      }
    }
    scales += kLane * kRows;
    x_scales += kLane * kRowsX;
    x_sums += kRowsX;
  }
}

template <typename V>
void run_many_rows_w4a4(const GemmTask& task, int64_t group_begin, int64_t group_end) {
  constexpr int kLane = V::kLaneBlocks;
  const int64_t blocks = task.k / kBlockK;
  const int64_t slots = (blocks + kLane - 1) / kLane * kLane;  // of x
  run_tiles<V, ByteTile<V>>(
      task,
      group_begin,
      group_end,
      blocks,
      kTileSteps / kBlockSteps,
      W4a4Unit<V>::kBytes,
      decode_byte_tile<V>,
      [&]<int kRowsX>(const ByteTile<V>& tile, int64_t row, int64_t block, int count, float* acc) {
        const int64_t at = row * slots + block * kRowsX;
        const int32_t* x = static_cast<const int32_t*>(task.x) + at * kBlockSteps;
        const float* x_scales = task.x_scales + at;
        const int32_t* x_sums = task.x_sums + at / kLane;
        const int lane_blocks = (count + kLane - 1) / kLane;
        const auto multiply = [&]<bool kWordScales>() {
          if constexpr (V::kLanes == 8 && kRowsX > 3) {
            for (int first = 0; first < kVectors; first += 2) {
              micro_w4a4<V, kRowsX, 2, kWordScales>(
                  tile, first, x, x_scales, x_sums, acc, lane_blocks);
            }
          } else {
            micro_w4a4<V, kRowsX, 4, kWordScales>(tile, 0, x, x_scales, x_sums, acc, lane_blocks);
          }
        };
        if constexpr (kLane == 2) {
          if (tile.word_scales) {
            multiply.template operator()<true>();
            return;
          }
        }
        multiply.template operator()<false>();
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
