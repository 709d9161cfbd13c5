// The CPU GEMM as templates over a vector type (simd_*.h). Included by ISA files only; everything
// has internal linkage.
//
// Plan. Output rows n sit in SIMD lanes, so K is summed in one fixed sequence by construction: no
// horizontal adds, no split of K. A group is four vectors of rows. One row of x decodes weights in
// registers and streams them once; more rows decode a panel of kTileK k's into an L1-resident tile
// of 32-bit lanes and run micro-kernels of up to kMaxRowGroup rows over it. Both add the same
// products in the same order, so the bits of a row do not depend on the number of rows.
//
// Order: Scaled (nvfp4): t = sum over a block of 16; acc = fma(t, block scale, acc).
//        Plain (bf16):   acc = acc + w * x, k ascending.
#pragma once

#include <cstdint>

#include "backends/cpu/isa_abi.h"

namespace nibble::cpu {
namespace {

constexpr int kVectors = 4;      // vectors of output rows in a group
constexpr int kBlockK = 16;      // NVFP4 block
constexpr int kTileSteps = 128;  // steps of a decoded tile: 16 KiB (AVX2), 32 KiB (AVX-512)

template <typename V>
constexpr int kGroupRows = kVectors * V::kLanes;

// Calls body(v) with v = 0, 1, 2, 3 as compile-time constants.
template <typename Body>
inline __attribute__((always_inline)) void for_vectors(Body&& body) {
  body.template operator()<0>();
  body.template operator()<1>();
  body.template operator()<2>();
  body.template operator()<3>();
}

// ---- formats: how a group's bytes become steps ----

// NVFP4, per block of 16 k: 4 vectors x 16 k of codes, then the group's block scales.
template <typename V>
struct Nvfp4Format {
  static constexpr bool kScaled = true;
  static constexpr int kUnitK = kBlockK;
  static constexpr int kUnitSteps = kBlockK / V::kKPerStep;
  static constexpr int kCodeBytes = kGroupRows<V> * kBlockK / 2;
  static constexpr int kUnitBytes = kCodeBytes + kGroupRows<V>;
  static constexpr int kSlices = kBlockK / (V::kSliceSteps * V::kKPerStep);
  static constexpr int kSliceSteps = V::kSliceSteps;

  // The steps of slice kSlice of vector v, in order.
  template <int kSlice>
  static void decode(const uint8_t* unit, int v, typename V::Vec* w) {
    V::template decode<kSlice % V::kSlices>(
        unit + (kSlice / V::kSlices * kVectors + v) * V::kDecodeBytes, w);
  }
  template <int kVector>
  static typename V::Vec scales(const uint8_t* unit) {
    return V::template block_scales<kVector>(unit + kCodeBytes);
  }
};

// BF16, per two k: 4 vectors of pairs.
template <typename V>
struct Bf16Format {
  static constexpr bool kScaled = false;
  static constexpr int kUnitK = 2;
  static constexpr int kUnitSteps = V::kPairSteps;
  static constexpr int kUnitBytes = kVectors * V::kPairBytes;
  static constexpr int kSlices = 1;
  static constexpr int kSliceSteps = V::kPairSteps;

  template <int kSlice>
  static void decode(const uint8_t* unit, int v, typename V::Vec* w) {
    V::decode_pairs(unit + v * V::kPairBytes, w);
  }
};

// ---- epilogue ----

template <typename V>
void store_row(const GemmTask& task, int64_t row, int64_t column, const float* acc) {
  constexpr int kRows = kGroupRows<V>;
  alignas(64) float out[kRows];
  const int64_t left = task.n - column;
  const int count = left < kRows ? static_cast<int>(left) : kRows;
  const float one = 1.0f;
  const typename V::Vec row_scale =
      V::broadcast(task.row_scale == nullptr ? &one : task.row_scale + row);
  const typename V::Vec alpha = V::mul(V::broadcast(task.alpha), row_scale);
  for (int v = 0; v < kVectors; ++v) {
    const int at = v * V::kLanes;
    V::store(out + at, V::mul(V::load(acc + at), alpha));
  }
  if (task.bias != nullptr || task.residual != nullptr) {
    const uint16_t* sources[2] = {
        task.bias == nullptr ? nullptr : task.bias + column,
        task.residual == nullptr ? nullptr : task.residual + row * task.residual_stride + column};
    for (const uint16_t* source : sources) {
      if (source == nullptr) {
        continue;
      }
      alignas(64) uint16_t words[kRows] = {};
      for (int i = 0; i < count; ++i) {
        words[i] = source[i];
      }
      for (int v = 0; v < kVectors; ++v) {
        const int at = v * V::kLanes;
        V::store(out + at, V::add(V::load(out + at), V::load_bf16(words + at)));
      }
    }
  }
  if (task.y_is_f32 != 0) {
    float* y = static_cast<float*>(task.y) + row * task.y_stride + column;
    if (count == kRows) {
      for (int v = 0; v < kVectors; ++v) {
        V::store(y + v * V::kLanes, V::load(out + v * V::kLanes));
      }
      return;
    }
    for (int i = 0; i < count; ++i) {
      y[i] = out[i];
    }
    return;
  }
  uint16_t* y = static_cast<uint16_t*>(task.y) + row * task.y_stride + column;
  if (count == kRows) {
    for (int v = 0; v < kVectors; ++v) {
      V::store_bf16(y + v * V::kLanes, V::load(out + v * V::kLanes));
    }
    return;
  }
  alignas(64) uint16_t words[kRows];
  for (int v = 0; v < kVectors; ++v) {
    V::store_bf16(words + v * V::kLanes, V::load(out + v * V::kLanes));
  }
  for (int i = 0; i < count; ++i) {
    y[i] = words[i];
  }
}

// ---- one row of x: stream the weights once ----

// Slices of the four vectors alternate: a vector's sum is one chain of multiply-adds, and four
// chains side by side hide most of their latency (one vector at a time: 4 instead of 9 weights a
// cycle on Zen 3).
template <typename V, typename Format, int kSlice = 0>
inline __attribute__((always_inline)) void add_slices(const uint8_t* unit,
                                                      const float* x,
                                                      typename V::Vec* sum) {
  if constexpr (kSlice < Format::kSlices) {
    typename V::Vec xv[Format::kSliceSteps];
#pragma GCC unroll 4
    for (int s = 0; s < Format::kSliceSteps; ++s) {
      xv[s] = V::broadcast(x + kSlice * Format::kSliceSteps + s);
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      typename V::Vec w[Format::kSliceSteps];
      Format::template decode<kSlice>(unit, v, w);
#pragma GCC unroll 4
      for (int s = 0; s < Format::kSliceSteps; ++s) {
        sum[v] = V::madd(sum[v], w[s], xv[s]);
      }
    }
    add_slices<V, Format, kSlice + 1>(unit, x, sum);
  }
}

// Bytes ahead of the stream; hardware prefetchers stop at page borders. 4096 reached 79 to 90 % of
// the read speed on Zen 3, 8192 into L1 93 %, into L2 100 %; on a Xeon 75 and 81 %, and half
// without.
constexpr int kPrefetchBytes = 8192;
constexpr int kPrefetchLevel = 2;  // of __builtin_prefetch: L2 and beyond

template <typename V, typename Format>
void run_one_row(const GemmTask& task, int64_t group_begin, int64_t group_end) {
  using Vec = typename V::Vec;
  const int64_t units = task.k / Format::kUnitK;
  const float* x = static_cast<const float*>(task.x);
  const uint8_t* unit = task.weights + group_begin * units * Format::kUnitBytes;
  for (int64_t group = group_begin; group < group_end; ++group) {
    Vec acc[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      acc[v] = V::zero();
    }
    const float* x_unit = x;
    for (int64_t u = 0; u < units; ++u) {
#pragma GCC unroll 16
      for (int line = 0; line < Format::kUnitBytes; line += 64) {
        __builtin_prefetch(unit + kPrefetchBytes + line, 0, kPrefetchLevel);
      }
      if constexpr (Format::kScaled) {
        Vec sum[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          sum[v] = V::zero();
        }
        add_slices<V, Format>(unit, x_unit, sum);
        for_vectors([&]<int v>() __attribute__((always_inline)) {
          acc[v] = V::fma(sum[v], Format::template scales<v>(unit), acc[v]);
        });
      } else {
        add_slices<V, Format>(unit, x_unit, acc);
      }
      unit += Format::kUnitBytes;
      x_unit += Format::kUnitSteps;
    }
    alignas(64) float out[kGroupRows<V>];
    for (int v = 0; v < kVectors; ++v) {
      V::store(out + v * V::kLanes, acc[v]);
    }
    store_row<V>(task, 0, group * kGroupRows<V>, out);
  }
}

// ---- many rows of x: decoded tile and micro-kernels ----

template <typename V>
struct Tile {
  alignas(64) float w[kTileSteps * kGroupRows<V>];  // [steps, group rows]
  alignas(64) float scales[kTileSteps * V::kKPerStep / kBlockK * kGroupRows<V>];
};

// Groups whose tiles of one range of K follow each other, so that x comes from the L2 cache for all
// but the first.
constexpr int kGroupsTogether = 2;

template <typename V, typename Format, int kSlice = 0>
void decode_unit(const uint8_t* unit, int v, float* to) {
  if constexpr (kSlice < Format::kSlices) {
    typename V::Vec w[Format::kSliceSteps];
    Format::template decode<kSlice>(unit, v, w);
    for (int s = 0; s < Format::kSliceSteps; ++s) {
      V::store(to + (kSlice * Format::kSliceSteps + s) * kGroupRows<V>, w[s]);
    }
    decode_unit<V, Format, kSlice + 1>(unit, v, to);
  }
}

template <typename V, typename Format>
void decode_tile(const uint8_t* units, int num_units, Tile<V>& tile) {
  constexpr int kRows = kGroupRows<V>;
  for (int u = 0; u < num_units; ++u) {
    const uint8_t* unit = units + u * Format::kUnitBytes;
    for (int v = 0; v < kVectors; ++v) {
      decode_unit<V, Format>(unit, v, tile.w + u * Format::kUnitSteps * kRows + v * V::kLanes);
    }
    if constexpr (Format::kScaled) {
      for_vectors([&]<int v>() {
        V::store(tile.scales + u * kRows + v * V::kLanes, Format::template scales<v>(unit));
      });
    }
  }
}

// kRowsX rows of x times kVecs vectors of the tile, starting at vector `first`.
template <typename V, typename Format, int kRowsX, int kVecs>
void micro(const Tile<V>& tile, int first, const float* x, float* acc, int steps) {
  using Vec = typename V::Vec;
  constexpr int kRows = kGroupRows<V>;
  const float* w = tile.w + first * V::kLanes;
  float* to = acc + first * V::kLanes;
  Vec sum[kRowsX][kVecs];
  const auto clear = [&] {
#pragma GCC unroll 6
    for (int r = 0; r < kRowsX; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        sum[r][v] = V::zero();
      }
    }
  };
  const auto step = [&] {
    Vec wv[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      wv[v] = V::load(w + v * V::kLanes);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRowsX; ++r) {
      const Vec xv = V::broadcast(x + r);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        sum[r][v] = V::madd(sum[r][v], wv[v], xv);
      }
    }
    w += kRows;
    x += kRowsX;
  };
  if constexpr (Format::kScaled) {
    const float* scales = tile.scales + first * V::kLanes;
    for (int done = 0; done < steps; done += Format::kUnitSteps) {
      clear();
      for (int s = 0; s < Format::kUnitSteps; ++s) {
        step();
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        const Vec scale = V::load(scales + v * V::kLanes);
#pragma GCC unroll 6
        for (int r = 0; r < kRowsX; ++r) {
          float* at = to + r * kRows + v * V::kLanes;
          V::store(at, V::fma(sum[r][v], scale, V::load(at)));
        }
      }
      scales += kRows;
    }
  } else {
#pragma GCC unroll 6
    for (int r = 0; r < kRowsX; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        sum[r][v] = V::load(to + r * kRows + v * V::kLanes);
      }
    }
    for (int s = 0; s < steps; ++s) {
      step();
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRowsX; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        V::store(to + r * kRows + v * V::kLanes, sum[r][v]);
      }
    }
  }
}

// 16 vector registers hold 6 x 2 or 3 x 4 sums beside the operands; 32 hold 6 x 4.
template <typename V, typename Format, int kRowsX>
void micro_group(const Tile<V>& tile, const float* x, float* acc, int steps) {
  if constexpr (V::kLanes == 8 && kRowsX > 3) {
    micro<V, Format, kRowsX, 2>(tile, 0, x, acc, steps);
    micro<V, Format, kRowsX, 2>(tile, 2, x, acc, steps);
  } else {
    micro<V, Format, kRowsX, 4>(tile, 0, x, acc, steps);
  }
}

// Calls body(rows_constant, first row, count) for every row group of the task.
template <typename Body>
void for_row_groups(int64_t rows, Body&& body) {
  const int64_t groups = (rows + kMaxRowGroup - 1) / kMaxRowGroup;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t begin = rows * g / groups;
    const int64_t count = rows * (g + 1) / groups - begin;
    switch (count) {
      case 1:
        body.template operator()<1>(begin);
        break;
      case 2:
        body.template operator()<2>(begin);
        break;
      case 3:
        body.template operator()<3>(begin);
        break;
      case 4:
        body.template operator()<4>(begin);
        break;
      case 5:
        body.template operator()<5>(begin);
        break;
      default:
        body.template operator()<6>(begin);
        break;
    }
  }
}

// Asks for the part of `bytes` that is [row, row + rows) of all_rows, into L2. Always inlined: for
// GCC a function that only prefetches has no effect, and it drops calls of it.
inline __attribute__((always_inline)) void fetch_share(
    const uint8_t* memory, int64_t bytes, int64_t row, int64_t rows, int64_t all_rows) {
  const int64_t lines = (bytes + 63) / 64;
  const int64_t end = lines * (row + rows) / all_rows;
  for (int64_t line = lines * row / all_rows; line < end; ++line) {
    __builtin_prefetch(memory + line * 64, 0, kPrefetchLevel);
  }
}

// What the many-row kernels share. A tile is `tile_units` units of one group:
// decode(units, count, tile), then multiply.operator()<rows>(tile, first row, first unit, count,
// acc) for each row group, which adds to acc: [rows, group rows]. A piece of the next tile's
// weights is asked for before each row group: decoding them from memory would wait for every line.
// What follows the last tile is the next matrix where experts lie one after another.
template <typename V, typename AnyTile, typename Decode, typename Multiply>
void run_tiles(const GemmTask& task,
               int64_t group_begin,
               int64_t group_end,
               int64_t units,
               int tile_units,
               int64_t unit_bytes,
               const Decode& decode,
               const Multiply& multiply) {
  constexpr int kRows = kGroupRows<V>;
  AnyTile tile;
  alignas(64) float acc[kGroupsTogether * kRowBlock * kRows];
  for (int64_t first = group_begin; first < group_end; first += kGroupsTogether) {
    const int64_t left_groups = group_end - first;
    const int64_t groups = left_groups < kGroupsTogether ? left_groups : kGroupsTogether;
    for (int64_t i = 0; i < groups * task.rows * kRows; i += V::kLanes) {
      V::store(acc + i, V::zero());
    }
    for (int64_t u = 0; u < units; u += tile_units) {
      const int64_t left = units - u;
      const int count = left < tile_units ? static_cast<int>(left) : tile_units;
      for (int64_t g = 0; g < groups; ++g) {
        const auto unit_at = [&](int64_t group, int64_t unit) {
          return task.weights + (group * units + unit) * unit_bytes;
        };
        decode(unit_at(first + g, u), count, tile);
        const uint8_t* next = g + 1 < groups           ? unit_at(first + g + 1, u)
                              : u + tile_units < units ? unit_at(first, u + tile_units)
                                                       : unit_at(first + groups, 0);
        float* group_acc = acc + g * task.rows * kRows;
        for_row_groups(task.rows, [&]<int kRowsX>(int64_t row) {
          fetch_share(next, tile_units * unit_bytes, row, kRowsX, task.rows);
          multiply.template operator()<kRowsX>(tile, row, u, count, group_acc + row * kRows);
        });
      }
    }
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t row = 0; row < task.rows; ++row) {
        store_row<V>(task, row, (first + g) * kRows, acc + (g * task.rows + row) * kRows);
      }
    }
  }
}

template <typename V, typename Format>
void run_many_rows(const GemmTask& task, int64_t group_begin, int64_t group_end) {
  const int64_t total_steps = task.k / V::kKPerStep;
  run_tiles<V, Tile<V>>(
      task,
      group_begin,
      group_end,
      task.k / Format::kUnitK,
      kTileSteps / Format::kUnitSteps,
      Format::kUnitBytes,
      decode_tile<V, Format>,
      [&]<int kRowsX>(const Tile<V>& tile, int64_t row, int64_t unit, int count, float* acc) {
        const float* x = static_cast<const float*>(task.x) + row * total_steps +
                         unit * Format::kUnitSteps * kRowsX;
        micro_group<V, Format, kRowsX>(tile, x, acc, count * Format::kUnitSteps);
      });
}

template <typename V, typename Format>
void run_gemm(const GemmTask& task, int64_t group_begin, int64_t group_end) {
  if (task.rows == 1) {
    run_one_row<V, Format>(task, group_begin, group_end);
  } else {
    run_many_rows<V, Format>(task, group_begin, group_end);
  }
}

}  // namespace
}  // namespace nibble::cpu
