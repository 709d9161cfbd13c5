#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "backends/cuda/nvfp4_w4a16_cuts.h"
#include "backends/cuda/nvfp4_w4a16_sm90.h"
#include "backends/cuda/nvfp4_w4a16_strips.h"
#include "backends/cuda/nvfp4_w4a16_tiles.h"
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

// Sharing the last wave: beyond so many rows power binds and not the waves (6656 x 19968, 2048
// rows: 819 us shared, 802 whole; 371 and 468 at 1024).
constexpr int64_t kMaxMixedRows = 1024;
constexpr double kSharingGain = 0.97;  // must be expected to be so much faster

constexpr std::array<int, kNumW4A16Tiles> kTokens = {
    8, 16, 32, 64, 128, 128, 32, 64, 64, 128, kStripMaxTokens};

// The same cuts in every tile are worth a tenth of the blocks: pieces are fewer and no block works
// for two tiles (6144 x 4096, 8 rows: 9.4 us with 264 units, 7.7 with 240).
constexpr int64_t kEvenPercent = 90;

// Large row counts pause between two pieces of a tile, some 0.2 us: pieces shorter than so many K64
// blocks are joined in pairs where a tile has more than a few.
constexpr int kShortPieceBlocks = 12;
constexpr int kFewPieces = 4;

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
  if (even * 100 >= most * kEvenPercent) {
    int pieces = static_cast<int>(even / cuts.row_tiles);
    while (pieces > kFewPieces && pieces % 2 == 0 && cuts.k_blocks < kShortPieceBlocks * pieces) {
      pieces /= 2;
    }
    cuts.units = pieces * cuts.row_tiles;
  }
  return cuts;
}

const char* to_string(W4A16Tile tile) {
  static constexpr std::array<const char*, kNumW4A16Tiles> kNames = {
      "t8", "t16", "t32", "t64", "t128", "t128w", "t32s", "t64s", "t64w", "t128m", "strips8"};
  return kNames[static_cast<size_t>(tile)];
}

namespace {

// The tiles of the last wave of whole ones, cut at the pieces of K; false where that gains nothing
// or does not fit into what is kept for shared tiles.
bool plan_mixed(
    const W4A16Cuts& cuts, int64_t m, int64_t n, int64_t k, int multiprocessors, W4A16Plan* plan) {
  const int pieces = cuts.units / cuts.row_tiles;
  const int64_t tiles = cuts.row_tiles * ceil_div(m, plan->tokens);
  const int64_t last = tiles % multiprocessors;
  if (cuts.units % cuts.row_tiles != 0 || last == 0 || last > w4a16_num_counters(n)) {
    return false;
  }
  plan->units_per_block = static_cast<int>(ceil_div(last * pieces, multiprocessors));
  plan->first_tiles = static_cast<int>(tiles - last);
  plan->line_tiles = static_cast<int>(last);
  plan->blocks = multiprocessors;
  plan->workspace_bytes = (last * pieces + ceil_div(last * pieces, plan->units_per_block)) *
                          kTileRows * plan->tokens * 4;
  plan->chain = plan->first_tiles > 0 && pieces % plan->units_per_block == 0;
  return plan->units_per_block < pieces && plan->workspace_bytes <= w4a16_workspace_bytes(m, n, k);
}

}  // namespace

bool plan_w4a16_as(
    W4A16Tile tile, int64_t m, int64_t n, int64_t k, int multiprocessors, W4A16Plan* plan) {
  *plan = W4A16Plan{};
  plan->tile = tile;
  plan->tokens = kTokens[static_cast<size_t>(tile)];
  if (tile == W4A16Tile::Strips8) {
    W4A16StripsPlan strips;
    return plan_w4a16_strips(m, n, k, multiprocessors, &strips);
  }
  const int64_t token_tiles = ceil_div(m, plan->tokens);
  const W4A16Cuts cuts = w4a16_cuts(n, k);
  if (is_whole(tile)) {
    plan->token_group = static_cast<int>(std::min<int64_t>(token_tiles, 8));
    if (tile == W4A16Tile::Tokens128Mixed && !plan_mixed(cuts, m, n, k, multiprocessors, plan)) {
      return false;
    }
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
    if ((tile == W4A16Tile::Tokens32Slices || tile == W4A16Tile::Tokens64Slices) &&
        blocks * token_tiles > 2 * multiprocessors) {
      return false;  // blocks wait for each other here too, and two fit on a multiprocessor
    }
    plan->workspace_bytes = token_tiles * (cuts.units + blocks) * kTileRows * plan->tokens * 4;
  }
  return m >= 1 && n >= 1 && k >= 8 && k % 8 == 0;
}

namespace {

// Microseconds on an H200 (docs/benchmarks.md): whole tiles leave multiprocessors idle in the last
// wave, sharing costs an exchange of partial sums a token tile.
double whole_us(const W4A16Cuts& cuts, int64_t token_tiles, int multiprocessors) {
  const auto waves = static_cast<double>(ceil_div(cuts.row_tiles * token_tiles, multiprocessors));
  return waves * (0.38 * cuts.k_blocks + 2);
}

double shared_us(const W4A16Cuts& cuts, int64_t token_tiles, int multiprocessors) {
  return static_cast<double>(token_tiles) *
         (0.34 * static_cast<double>(ceil_div(cuts.total(), multiprocessors)) + 8);
}

// The better of whole and shared tiles.
double unshared_us(int64_t m, const W4A16Cuts& cuts, int multiprocessors) {
  const int64_t token_tiles = ceil_div(m, 128);
  const double whole = whole_us(cuts, token_tiles, multiprocessors);
  return m <= kMaxSharedRows ? std::min(whole, shared_us(cuts, token_tiles, multiprocessors))
                             : whole;
}

// Pieces of the last wave cost what they are long, and an exchange that is cheap where a block has
// pieces of one tile only and has filled its pipeline with whole tiles before.
double mixed_us(const W4A16Cuts& cuts, const W4A16Plan& plan, int multiprocessors) {
  const int pieces = cuts.units / cuts.row_tiles;
  const double piece_blocks = static_cast<double>(cuts.k_blocks) / pieces;
  const double exchange =
      plan.chain ? 3.5
                 : (pieces % plan.units_per_block == 0 ? 6 : 10) + (plan.first_tiles == 0 ? 4 : 0);
  const int waves = plan.first_tiles / multiprocessors;
  return waves * (0.38 * cuts.k_blocks + 2) + 0.38 * plan.units_per_block * piece_blocks + exchange;
}

W4A16Tile tile_by_rule(int64_t m, const W4A16Cuts& cuts, int multiprocessors) {
  if (m <= 8) {
    return W4A16Tile::Tokens8;
  }
  if (m <= 16) {
    return W4A16Tile::Tokens16;
  }
  if (m <= 32) {
    return W4A16Tile::Tokens32;
  }
  if (m <= 64) {
    // All blocks of a tile add its parts, if all blocks of the launch are resident at once.
    return cuts.units <= 2 * multiprocessors ? W4A16Tile::Tokens64Slices : W4A16Tile::Tokens64;
  }
  const int64_t token_tiles = ceil_div(m, 128);
  return m <= kMaxSharedRows && shared_us(cuts, token_tiles, multiprocessors) <
                                    whole_us(cuts, token_tiles, multiprocessors)
             ? W4A16Tile::Tokens128
             : W4A16Tile::Tokens128Whole;
}

// Where the last wave of whole tiles is thin, the last rows are cheaper as shared tiles. Rows of
// the first launch, or 0.
int64_t whole_rows_of(int64_t m, const W4A16Cuts& cuts, int multiprocessors) {
  const int64_t token_tiles = ceil_div(m, 128);
  double best = whole_us(cuts, token_tiles, multiprocessors);
  if (token_tiles <= kMaxSharedRows / 128) {
    best = std::min(best, shared_us(cuts, token_tiles, multiprocessors));
  }
  best *= 0.96;  // a second launch must be worth it
  int64_t rows = 0;
  for (int64_t shared = 1; shared <= 2 && shared < token_tiles; ++shared) {
    const double us = whole_us(cuts, token_tiles - shared, multiprocessors) +
                      shared_us(cuts, shared, multiprocessors);
    if (us < best) {
      best = us;
      rows = (token_tiles - shared) * 128;
    }
  }
  return rows;
}

}  // namespace

std::optional<W4A16Tile> measured_tile(int64_t m, int64_t n, int64_t k) {
  if (m < 1 || m > kMeasuredRows.back()) {
    return std::nullopt;
  }
  for (const W4A16MeasuredTiles& row : h200_tiles()) {
    if (row.n == n && row.k == k) {
      const auto column = std::lower_bound(kMeasuredRows.begin(), kMeasuredRows.end(), m);
      return row.tiles[static_cast<size_t>(column - kMeasuredRows.begin())];
    }
  }
  return std::nullopt;
}

W4A16Plan plan_w4a16(int64_t m, int64_t n, int64_t k, int multiprocessors) {
  const W4A16Cuts cuts = w4a16_cuts(n, k);
  W4A16Plan plan;
  if (w4a16_strips_pay(m, n, k, multiprocessors) &&
      plan_w4a16_as(W4A16Tile::Strips8, m, n, k, multiprocessors, &plan)) {
    return plan;
  }
  const std::optional<W4A16Tile> measured =
      multiprocessors == kMeasuredMultiprocessors ? measured_tile(m, n, k) : std::nullopt;
  if (measured && plan_w4a16_as(*measured, m, n, k, multiprocessors, &plan)) {
    return plan;
  }
  if (m > 128 && m <= kMaxMixedRows &&
      plan_w4a16_as(W4A16Tile::Tokens128Mixed, m, n, k, multiprocessors, &plan) &&
      mixed_us(cuts, plan, multiprocessors) <
          kSharingGain * unshared_us(m, cuts, multiprocessors)) {
    return plan;
  }
  const int64_t whole_rows = m > 128 ? whole_rows_of(m, cuts, multiprocessors) : 0;
  if (whole_rows > 0) {
    plan_w4a16_as(W4A16Tile::Tokens128, m - whole_rows, n, k, multiprocessors, &plan);
    plan.whole_rows = whole_rows;
    return plan;
  }
  plan_w4a16_as(tile_by_rule(m, cuts, multiprocessors), m, n, k, multiprocessors, &plan);
  return plan;
}

std::string describe(const W4A16Plan& plan) {
  return (plan.whole_rows > 0 ? "t128w " + std::to_string(plan.whole_rows) + " + " : "") +
         to_string(plan.tile);
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
