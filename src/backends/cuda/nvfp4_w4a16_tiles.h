// Which tile of nvfp4_w4a16_sm90 was the fastest on a real GPU, for the matrices of known models.
// Plain C++; the table is written by bench/gpu/tile_table.py from a sweep:
//   w4a16_bench --no-cublas --tiles all --shapes all --pause 10
//     --m 8,16,32,64,128,256,384,512 --json sweep.json
//   bench/gpu/tile_table.py sweep.json > src/backends/cuda/nvfp4_w4a16_tiles_h200.cpp
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "backends/cuda/nvfp4_w4a16_sm90.h"

namespace nibble::cuda {

/// The measured machine has so many multiprocessors: an H200; H100 SXM has as many.
inline constexpr int kMeasuredMultiprocessors = 132;

/// Rows up to which each column of the table holds; above, whole tiles are the only ones.
inline constexpr std::array<int, 8> kMeasuredRows = {8, 16, 32, 64, 128, 256, 384, 512};

struct W4A16MeasuredTiles {
  int32_t n, k;
  std::array<W4A16Tile, kMeasuredRows.size()> tiles;
};

std::span<const W4A16MeasuredTiles> h200_tiles();

/// The table's tile for m rows of an n x k matrix; none where it does not have the matrix or m.
std::optional<W4A16Tile> measured_tile(int64_t m, int64_t n, int64_t k);

}  // namespace nibble::cuda
