// How products of few rows are dealt out in strips. No GPU needed.
#include "backends/cuda/nvfp4_w4a16_strips.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "backends/cuda/nvfp4_w4a16_sm90.h"

namespace nibble::cuda {

namespace {

struct Size {
  int64_t n, k;
};
constexpr Size kQkv{6144, 4096};
constexpr Size kOutput{4096, 4096};
constexpr Size kGateUp{24576, 4096};
constexpr Size kDown{4096, 12288};
const std::vector<Size> kLayers{kQkv, kOutput, kGateUp, kDown};
const std::vector<Size> kSizes{kQkv,
                               kOutput,
                               kGateUp,
                               kDown,
                               {1, 16},
                               {64, 64},
                               {130, 1936},
                               {2048, 4096},
                               {6656, 19968},
                               {57344, 8192},
                               {151936, 4096}};

constexpr int kMultiprocessors = 132;
constexpr int64_t kShared = 228 * 1024;  // of a multiprocessor
constexpr int64_t kOfABlock = 1024;      // that the system takes for itself

W4A16StripsPlan plan_of(int64_t m, const Size& size) {
  W4A16StripsPlan plan;
  EXPECT_TRUE(plan_w4a16_strips(m, size.n, size.k, kMultiprocessors, &plan))
      << m << " rows of " << size.n << "x" << size.k;
  return plan;
}

int64_t taken(const W4A16StripsPlan& plan) { return plan.shared_bytes + kOfABlock; }

}  // namespace

TEST(W4A16Strips, AreSpreadOverTheMultiprocessorsAsEvenlyAsTheyCanBe) {
  for (const Size& size : kSizes) {
    const W4A16StripsPlan plan = plan_of(1, size);
    EXPECT_EQ(plan.strips, (size.n + 15) / 16);
    EXPECT_EQ(plan.blocks, std::min(plan.strips, kMultiprocessors));
    EXPECT_GE(plan.blocks * plan.strips_per_block, plan.strips);
    EXPECT_LT(plan.blocks * (plan.strips_per_block - 1), plan.strips);
  }
}

TEST(W4A16Strips, WarpsHaveAllPiecesBetweenThem) {
  for (const Size& size : kSizes) {
    const W4A16StripsPlan plan = plan_of(1, size);
    const int items = plan.strips_per_block * (plan.whole ? 1 : plan.pieces);
    const int rounds = (items + plan.warps - 1) / plan.warps;
    EXPECT_LE(plan.warps, kStripMaxWarps);
    EXPECT_GE(plan.warps * rounds, items);
    EXPECT_LT((plan.warps - 1) * rounds, items) << "an idle warp";
    EXPECT_EQ(plan.whole, plan.pieces == 1 || plan.strips_per_block >= 8);
  }
  EXPECT_FALSE(plan_of(1, kDown).whole);
  EXPECT_TRUE(plan_of(1, kGateUp).whole);
}

TEST(W4A16Strips, PartsOfSharedMemoryFollowEachOtherAligned) {
  for (const Size& size : kSizes) {
    for (int64_t m = 1; m <= kStripMaxTokens; ++m) {
      W4A16StripsPlan plan;
      if (!plan_w4a16_strips(m, size.n, size.k, kMultiprocessors, &plan)) {
        continue;
      }
      ASSERT_GE(plan.stages, 1);
      EXPECT_GE(plan.tokens_at, 8 * plan.warps * plan.stages);
      EXPECT_GE(plan.token_stride, size.k * 2);
      EXPECT_EQ(plan.token_stride % 128, 64) << "two tokens would meet in a bank";
      EXPECT_GE(plan.rows_at, plan.tokens_at + m * plan.token_stride);
      EXPECT_GE(plan.parts_at, plan.rows_at + 128 * plan.strips_per_block);
      const int sums = plan.whole ? 0 : 512 * plan.strips_per_block * plan.pieces;
      EXPECT_GE(plan.ring_at, plan.parts_at + sums);
      EXPECT_GE(plan.shared_bytes,
                plan.ring_at + plan.warps * plan.stages * kStripStage * kStripBytes);
      EXPECT_LE(plan.shared_bytes, 227 * 1024);
      for (const int at : {plan.tokens_at, plan.rows_at, plan.parts_at, plan.ring_at}) {
        EXPECT_EQ(at % 128, 0);
      }
    }
  }
}

TEST(W4A16Strips, TwoProductsFitBesideASmallKernelAndNoMore) {
  constexpr int64_t kSmallKernel = 1280 + kOfABlock;
  for (size_t i = 0; i < kLayers.size(); ++i) {  // as they follow each other in a layer
    const W4A16StripsPlan one = plan_of(1, kLayers[i]);
    const W4A16StripsPlan next = plan_of(1, kLayers[(i + 1) % kLayers.size()]);
    EXPECT_LE(taken(one) + taken(next) + kSmallKernel, kShared) << i;
    EXPECT_GT(taken(one) + 2 * taken(next), kShared) << i;
  }
  EXPECT_GT(2 * taken(plan_of(1, kOutput)), kShared) << "follows attention: never two of them";
}

TEST(W4A16Strips, AreRefusedForMoreThanEightRowsAndForRowsThatDoNotFit) {
  W4A16StripsPlan plan;
  EXPECT_TRUE(plan_w4a16_strips(8, 4096, 4096, kMultiprocessors, &plan));
  EXPECT_FALSE(plan_w4a16_strips(9, 4096, 4096, kMultiprocessors, &plan));
  EXPECT_FALSE(plan_w4a16_strips(0, 4096, 4096, kMultiprocessors, &plan));
  EXPECT_TRUE(plan_w4a16_strips(1, 8192, 28672, kMultiprocessors, &plan));
  EXPECT_FALSE(plan_w4a16_strips(8, 8192, 28672, kMultiprocessors, &plan));
  EXPECT_FALSE(plan_w4a16_strips(1, 4096, 4100, kMultiprocessors, &plan));
}

TEST(W4A16Strips, AreTakenForOneRowWhereAllMatricesOfALayerAreDealtOutEvenly) {
  std::vector<Size> layers = kLayers;
  layers.push_back({28672, 4096});
  layers.push_back({4096, 14336});
  for (const Size& size : layers) {
    EXPECT_EQ(plan_w4a16(1, size.n, size.k, kMultiprocessors).tile, W4A16Tile::Strips8);
    EXPECT_EQ(plan_w4a16(2, size.n, size.k, kMultiprocessors).tile, W4A16Tile::Tokens8);
  }
  for (const Size& other : {Size{2048, 4096},    // fewer strips than multiprocessors
                            Size{4096, 1024},    // another width
                            Size{10240, 8192},   // the same
                            Size{4480, 4096},    // uneven
                            Size{151936, 4096}}  // large
  ) {
    EXPECT_EQ(plan_w4a16(1, other.n, other.k, kMultiprocessors).tile, W4A16Tile::Tokens8)
        << other.n << "x" << other.k;
  }
}

}  // namespace nibble::cuda
