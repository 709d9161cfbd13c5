#include <algorithm>
#include <array>

#include "backends/cuda/nvfp4_w4a16_cuts.h"
#include "backends/cuda/nvfp4_w4a16_sm90.h"
#include "base/check.h"

namespace nibble::cuda {
namespace {

// Part of the summation order, so a constant and not read off the device: H100 SXM and H200 have
// 132 multiprocessors with room for two small blocks each; elsewhere the cuts are the same and
// merely balance less well.
constexpr int kUnits = 264;
constexpr int kMinUnitBlocks = 8;  // K64 blocks: below, adding up costs more than it saves

// Shared tiles: counters and workspace are per token tile.
constexpr int kMaxSharedTokenTiles = 8;
constexpr int kMaxSharedRows = 512;

constexpr std::array<int, kNumW4A16Tiles> kTokens = {8, 16, 32, 64, 128, 128};

}  // namespace

W4A16Cuts w4a16_cuts(int64_t n, int64_t k) {
  W4A16Cuts cuts;
  cuts.row_tiles = static_cast<int>(row_tiles_of(n));
  cuts.k_blocks = static_cast<int>(k_blocks_of(k));
  const int64_t total = row_tiles_of(n) * k_blocks_of(k);
  CHECK((total + 1) * kUnits < (int64_t{1} << 32), "matrix too large: ", n, " x ", k);
  const int64_t most = std::min<int64_t>(kUnits, std::max<int64_t>(1, total / kMinUnitBlocks));
  cuts.units = static_cast<int>(most);
  // Nearly as many units with the same cuts in every tile: fewer pieces, no slivers.
  const int64_t even = most / cuts.row_tiles * cuts.row_tiles;
  if (even * 100 >= most * 93) {
    cuts.units = static_cast<int>(even);
  }
  return cuts;
}

const char* to_string(W4A16Tile tile) {
  static constexpr std::array<const char*, kNumW4A16Tiles> kNames = {
      "t8", "t16", "t32", "t64", "t128", "t128w"};
  return kNames[static_cast<size_t>(tile)];
}

bool plan_w4a16_as(
    W4A16Tile tile, int64_t m, int64_t n, int64_t k, int multiprocessors, W4A16Plan* plan) {
  *plan = W4A16Plan{};
  plan->tile = tile;
  plan->tokens = kTokens[static_cast<size_t>(tile)];
  const int64_t token_tiles = ceil_div(m, plan->tokens);
  const W4A16Cuts cuts = w4a16_cuts(n, k);
  if (tile == W4A16Tile::Tokens128Whole) {
    plan->token_group = static_cast<int>(std::min<int64_t>(token_tiles, 8));
  } else {
    if (token_tiles > kMaxSharedTokenTiles || token_tiles * plan->tokens > kMaxSharedRows) {
      return false;
    }
    if (tile == W4A16Tile::Tokens128) {
      // All blocks must be resident at once: they wait for each other.
      plan->units_per_block =
          static_cast<int>(std::max<int64_t>(1, ceil_div(cuts.units, multiprocessors)));
    }
    const int64_t blocks = ceil_div(cuts.units, plan->units_per_block);
    plan->workspace_bytes = token_tiles * (cuts.units + blocks) * kTileRows * plan->tokens * 4;
  }
  return m >= 1 && n >= 1 && k >= 8 && k % 8 == 0;
}

W4A16Plan plan_w4a16(int64_t m, int64_t n, int64_t k, int multiprocessors) {
  W4A16Tile tile = W4A16Tile::Tokens128Whole;
  if (m <= 8) {
    tile = W4A16Tile::Tokens8;
  } else if (m <= 16) {
    tile = W4A16Tile::Tokens16;
  } else if (m <= 32) {
    tile = W4A16Tile::Tokens32;
  } else if (m <= 64) {
    tile = W4A16Tile::Tokens64;
  } else if (m <= kMaxSharedRows) {
    // Microseconds on an H200 (docs/benchmarks.md): whole tiles leave SMs idle in the last wave,
    // sharing costs an exchange of partial sums a token tile.
    const W4A16Cuts cuts = w4a16_cuts(n, k);
    const auto token_tiles = static_cast<double>(ceil_div(m, 128));
    const auto waves =
        static_cast<double>(ceil_div(cuts.row_tiles * ceil_div(m, 128), multiprocessors));
    const double whole = waves * (0.38 * cuts.k_blocks + 2);
    const double shared =
        token_tiles * (0.363 * static_cast<double>(ceil_div(cuts.total(), multiprocessors)) + 9.5);
    tile = shared < whole ? W4A16Tile::Tokens128 : W4A16Tile::Tokens128Whole;
  }
  W4A16Plan plan;
  plan_w4a16_as(tile, m, n, k, multiprocessors, &plan);
  return plan;
}

int64_t w4a16_workspace_bytes(int64_t max_rows, int64_t n, int64_t k) {
  const W4A16Cuts cuts = w4a16_cuts(n, k);
  const int64_t rows = std::min<int64_t>(max_rows, kMaxSharedRows);
  int64_t tile_rows = 8;  // of all tiles together: a power of two, as the tiles are
  while (tile_rows < rows) {
    tile_rows *= 2;
  }
  return 2 * cuts.units * kTileRows * tile_rows * 4;
}

int64_t w4a16_num_counters(int64_t n) { return row_tiles_of(n) * kMaxSharedTokenTiles; }

}  // namespace nibble::cuda
