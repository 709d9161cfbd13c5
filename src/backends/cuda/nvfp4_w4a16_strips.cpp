#include "backends/cuda/nvfp4_w4a16_strips.h"

#include <algorithm>

namespace nibble::cuda {

namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMostShared = 227 * kKiB;  // of a block on Hopper

// Two products follow each other on a multiprocessor: the next one's rings fill while this one
// runs. Two blocks of this size fit beside a small kernel's, three do not: with room for three, a
// multiprocessor gets two blocks of one product and another none (36 layers of 8B: 2280 us a step,
// 2910 with rings of 76 KiB).
constexpr int64_t kShared = 108 * kKiB;
// Of the output projection of attention: not two of them. Its blocks are placed while the blocks of
// attention keep some multiprocessors full, and would double up on the others.
constexpr int64_t kSharedAlone = 115 * kKiB;
// Rings are not made smaller than this for the sake of long or many rows of x.
constexpr int64_t kLeastRings = 80 * kKiB;

// From so many strips a block on, a warp has whole strips: the pieces of several would not come out
// even.
constexpr int kWholeStrips = 8;

// Where strips pay in whole steps (docs/benchmarks.md): one row, models of this width, whose four
// matrices are all dealt out evenly. With two rows the next product no longer fits beside the down
// projection (2716 us a step, 2340 without strips); where only some of a layer's matrices are
// strips, they double up beside the others (20 layers of 70B: 3473 us, 3283 without).
constexpr int64_t kPayingRows = 1;
constexpr int64_t kPayingWidth = 4096;
constexpr int64_t kPayingWeights = int64_t{28672} * kPayingWidth;  // above, the memory binds
constexpr int64_t kPayingPercent = 90;  // of the multiprocessors' time used

int most_pieces(const W4A16Cuts& cuts) {
  int most = 1;
  for (int tile = 0; tile < cuts.row_tiles; ++tile) {
    const int begin = tile * cuts.k_blocks;
    most = std::max(most, cuts.unit_of(begin + cuts.k_blocks - 1) - cuts.unit_of(begin) + 1);
  }
  return most;
}

int align_up(int64_t value, int64_t to) { return static_cast<int>(ceil_div(value, to) * to); }

/// The shape of attention's output projection: square or somewhat wider than high; other matrices
/// with more columns than rows have three times as many.
bool follows_attention(int64_t n, int64_t k) { return n <= k && k <= 2 * n; }

}  // namespace

bool plan_w4a16_strips(
    int64_t m, int64_t n, int64_t k, int multiprocessors, W4A16StripsPlan* plan) {
  *plan = W4A16StripsPlan{};
  if (m < 1 || m > kStripMaxTokens || n < 1 || k < 8 || k % 8 != 0 || multiprocessors < 1) {
    return false;
  }
  const W4A16Cuts cuts = w4a16_cuts(n, k);
  plan->strips = static_cast<int>(ceil_div(n, kStripRows));
  plan->blocks = std::min(plan->strips, multiprocessors);
  plan->strips_per_block = static_cast<int>(ceil_div(plan->strips, plan->blocks));
  plan->pieces = most_pieces(cuts);
  plan->whole = plan->pieces == 1 || plan->strips_per_block >= kWholeStrips;
  const int items = plan->strips_per_block * (plan->whole ? 1 : plan->pieces);
  const auto rounds = static_cast<int>(ceil_div(items, kStripMaxWarps));
  plan->warps = static_cast<int>(ceil_div(items, rounds));

  plan->token_stride = cuts.k_blocks * kRecordColumns * 2 + 64;  // 64: apart in the banks
  const int64_t sums = plan->whole ? 0 : int64_t{512} * items;
  const int64_t before_rings =
      3 * 128 + m * plan->token_stride + int64_t{128} * plan->strips_per_block + sums;
  const int64_t room =
      std::min(std::max(kShared - before_rings, kLeastRings), kMostShared - before_rings);
  const int64_t stage_bytes = int64_t{kStripStage} * kStripBytes;
  const int64_t longest =  // a warp's pieces
      plan->whole ? cuts.k_blocks : ceil_div(cuts.total(), cuts.units);
  plan->stages = static_cast<int>(
      std::min(rounds * ceil_div(longest, kStripStage), room / ((stage_bytes + 8) * plan->warps)));
  if (plan->stages < 1) {
    return false;
  }
  plan->tokens_at = align_up(int64_t{8} * plan->warps * plan->stages, 128);
  plan->rows_at = align_up(plan->tokens_at + m * plan->token_stride, 128);
  plan->parts_at = plan->rows_at + 128 * plan->strips_per_block;
  plan->ring_at = align_up(plan->parts_at + sums, 128);
  plan->shared_bytes = plan->ring_at + static_cast<int>(stage_bytes) * plan->warps * plan->stages;
  if (follows_attention(n, k)) {
    plan->shared_bytes = std::max(plan->shared_bytes, static_cast<int>(kSharedAlone));
  }
  return plan->shared_bytes <= kMostShared;
}

bool w4a16_strips_pay(int64_t m, int64_t n, int64_t k, int multiprocessors) {
  W4A16StripsPlan plan;
  return m <= kPayingRows && std::min(n, k) == kPayingWidth && n * k <= kPayingWeights &&
         plan_w4a16_strips(m, n, k, multiprocessors, &plan) && plan.blocks == multiprocessors &&
         plan.strips * int64_t{100} >= kPayingPercent * plan.strips_per_block * multiprocessors;
}

}  // namespace nibble::cuda
