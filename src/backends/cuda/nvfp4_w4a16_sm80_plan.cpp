#include "backends/cuda/nvfp4_w4a16_cuts.h"
#include "backends/cuda/nvfp4_w4a16_sm80.h"
#include "base/check.h"

namespace nibble::cuda {

namespace {

constexpr int kSlotsPerMultiprocessor = 2;

// Microseconds on an H200, see docs/benchmarks.md: a K64 block of 64 tokens, filling the pipeline
// and storing whole tiles, exchanging the parts of shared ones.
constexpr double kBlockUs = 0.87;
constexpr double kWholeUs = 2;
constexpr double kSharedUs = 8;

}  // namespace

bool plan_w4a16_sm80_as(
    W4A16Tile tile, int64_t m, int64_t n, int64_t k, int multiprocessors, W4A16Plan* plan) {
  switch (tile) {
    case W4A16Tile::Tokens8:
    case W4A16Tile::Tokens16:
    case W4A16Tile::Tokens32:
    case W4A16Tile::Tokens64:
    case W4A16Tile::Tokens64Whole:
      return plan_w4a16_as(tile, m, n, k, multiprocessors, plan);
    default:
      *plan = W4A16Plan{};
      return false;
  }
}

W4A16Plan plan_w4a16_sm80(int64_t m, int64_t n, int64_t k, int multiprocessors) {
  W4A16Tile tile = W4A16Tile::Tokens64;
  if (m <= 8) {
    tile = W4A16Tile::Tokens8;
  } else if (m <= 16) {
    tile = W4A16Tile::Tokens16;
  } else if (m <= 32) {
    tile = W4A16Tile::Tokens32;
  } else if (m > 64) {
    const W4A16Cuts cuts = w4a16_cuts(n, k);
    const int64_t tiles = ceil_div(m, 64);
    const int64_t slots = int64_t{kSlotsPerMultiprocessor} * multiprocessors;
    const auto waves = static_cast<double>(ceil_div(cuts.row_tiles * tiles, slots));
    const double whole = waves * (kBlockUs * cuts.k_blocks + kWholeUs);
    const double shared = static_cast<double>(tiles) *
                          (kBlockUs * cuts.total() / static_cast<double>(slots) + kSharedUs);
    W4A16Plan plan;
    if (whole <= shared ||
        !plan_w4a16_sm80_as(W4A16Tile::Tokens64, m, n, k, multiprocessors, &plan)) {
      tile = W4A16Tile::Tokens64Whole;
    }
  }
  W4A16Plan plan;
  CHECK(plan_w4a16_sm80_as(tile, m, n, k, multiprocessors, &plan),
        "no plan for ",
        m,
        " rows of ",
        n,
        " x ",
        k);
  return plan;
}

}  // namespace nibble::cuda
