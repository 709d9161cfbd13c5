// What the kernel of a whole decode step takes, and how it deals a layer out. No GPU needed.
#include "backends/cuda/decode_step_plan.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::cuda {
namespace {

using testing::HasSubstr;

constexpr int kMultiprocessors = 132;

DecodeStepShape shape(int layers, int hidden, int heads, int kv_heads, int head_dim, int inner) {
  DecodeStepShape s;
  s.layers = layers;
  s.hidden = hidden;
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_dim = head_dim;
  s.inner = inner;
  s.page_size = 16;
  return s;
}

const std::vector<DecodeStepShape> kTaken{shape(28, 1024, 16, 8, 128, 3072),   // Qwen3-0.6B
                                          shape(36, 4096, 32, 8, 128, 12288),  // Qwen3-8B
                                          shape(64, 5120, 64, 8, 128, 25600),  // Qwen3-32B
                                          shape(16, 2048, 32, 8, 64, 8192),    // Llama 3.2 1B
                                          shape(80, 8192, 64, 8, 128, 28672),  // Llama 3.1 70B
                                          shape(3, 256, 4, 2, 64, 512)};

TEST(DecodeStepRefusal, IsEmptyForPublishedModels) {
  for (const DecodeStepShape& s : kTaken) {
    EXPECT_EQ(decode_step_refusal(s, kMultiprocessors), "") << s.hidden;
  }
}

template <typename Change>
std::string with(const Change& change, int multiprocessors = kMultiprocessors) {
  DecodeStepShape s = kTaken[1];
  change(s);
  return decode_step_refusal(s, multiprocessors);
}

TEST(DecodeStepRefusal, NamesWhatDoesNotFit) {
  EXPECT_THAT(with([](auto&) {}, 0), HasSubstr("no multiprocessors"));
  for (const int layers : {0, 129}) {
    EXPECT_THAT(with([=](auto& s) { s.layers = layers; }), HasSubstr("layers"));
  }
  EXPECT_THAT(with([](auto& s) { s.kv_heads = s.heads = 16; }, 12),
              HasSubstr("no more KV heads than there are multiprocessors"));
  EXPECT_THAT(with([](auto& s) { s.head_dim = 96; }), HasSubstr("head_dim 64 or 128"));
  for (const int kv_heads : {0, 2, 3, 64}) {
    EXPECT_THAT(with([=](auto& s) { s.kv_heads = kv_heads; }), HasSubstr("query heads a KV head"));
  }
  for (const int page_size : {0, 4, 24}) {
    EXPECT_THAT(with([=](auto& s) { s.page_size = page_size; }), HasSubstr("page_size"));
  }
  for (const int hidden : {0, 128, 4224, 16384}) {
    EXPECT_THAT(with([=](auto& s) { s.hidden = hidden; }), HasSubstr("hidden_size"));
  }
  EXPECT_THAT(with([](auto& s) {
                s.heads = s.kv_heads = 3;
                s.head_dim = 64;
              }),
              HasSubstr("num_attention_heads * head_dim"));
  for (const int inner : {0, 128, 12352, 65536}) {
    EXPECT_THAT(with([=](auto& s) { s.inner = inner; }), HasSubstr("intermediate_size"));
  }
  // A small GPU: its multiprocessors would have too many rows each.
  EXPECT_THAT(with([](auto&) {}, 16), HasSubstr("strips of 16 rows a multiprocessor"));
}

TEST(DecodeStepShared, HasAPlaceOfItsOwnForEverything) {
  for (const DecodeStepShape& s : kTaken) {
    const StepShared p = place_step_shared(s, plan_decode_step(s, kMultiprocessors));
    const std::vector<int> places{p.x_at[0],
                                  p.x_at[1],
                                  p.rows_at,
                                  p.parts_at,
                                  p.sums_at,
                                  p.layers_at,
                                  p.block_at,
                                  p.stages_at,
                                  p.attention_at,
                                  p.epoch_at,
                                  p.barriers_at,
                                  p.pool_at};
    EXPECT_TRUE(std::is_sorted(places.begin(), places.end(), std::less_equal<>{}));
    for (const int place : places) {
      EXPECT_EQ(place % 128, 0);
    }
    EXPECT_GE(p.x_at[1] - p.x_at[0], 2 * s.hidden);
    EXPECT_GE(p.rows_at - p.x_at[1], 2 * std::max(s.inner, s.heads * s.head_dim));
    EXPECT_GE(p.ring_beside, 1);
    EXPECT_GE(p.ring_alone, p.ring_beside);
    EXPECT_EQ(p.attention_bytes % 128, 0);
    const int rings = kStepWarps * kStepStageBytes;
    EXPECT_LE(p.pool_at + p.attention_bytes + p.ring_beside * rings, kStepSharedBytes);
    EXPECT_LE(p.pool_at + p.ring_alone * rings, kStepSharedBytes);
  }
}

TEST(DecodeStepShared, LeavesAStageBesideTheLongestRowsAndTables) {
  const DecodeStepShape s = shape(128, 8192, 64, 8, 128, 32768);
  ASSERT_EQ(decode_step_refusal(s, kMultiprocessors), "");
  EXPECT_EQ(place_step_shared(s, plan_decode_step(s, kMultiprocessors)).ring_beside, 1);
}

TEST(DecodeStepPlan, GivesEveryStripOfEveryMatrixToOneBlock) {
  for (const DecodeStepShape& s : kTaken) {
    const DecodeStepPlan plan = plan_decode_step(s, kMultiprocessors);
    ASSERT_EQ(static_cast<int>(plan.blocks.size()), decode_step_blocks(s, kMultiprocessors));
    for (size_t p = 0; p < kNumStepProducts; ++p) {
      int next = 0;
      for (const StepBlock& block : plan.blocks) {
        EXPECT_EQ(block.first_strip[p], next);
        EXPECT_GT(block.strips[p], 0) << "blocks wait for what all of them write";
        next += block.strips[p];
      }
      EXPECT_EQ(next, plan.products[p].n / 16);
    }
  }
}

// Every K64 block of a block's strips is multiplied once, and every piece is ended by one warp, in
// its own place.
void expect_dealt_out(const DecodeStepPlan& plan, size_t b) {
  const StepBlock& block = plan.blocks[b];
  std::set<std::tuple<int, int, int>> multiplied;  // product, line, strip of the tile
  std::set<std::pair<int, int>> ended;             // product, part
  for (size_t i = 0; i + 1 < std::size(block.stage_begin); ++i) {
    const size_t p = i % kNumStepProducts;
    const StepProductPlan& product = plan.products[p];
    for (size_t at = block.stage_begin[i]; at < block.stage_begin[i + 1]; ++at) {
      const StepStage& stage = plan.stages[b * static_cast<size_t>(plan.most_stages) + at];
      ASSERT_EQ(static_cast<size_t>(stage.product()), p);
      const int line = stage.line() + stage.first();
      ASSERT_EQ(line / product.k_blocks, (line + stage.count() - 1) / product.k_blocks);
      const int strip = line / product.k_blocks * kStripsOfTile + stage.strip();
      ASSERT_GE(strip, block.first_strip[p]);
      ASSERT_LT(strip, block.first_strip[p] + block.strips[p]);
      for (int l = line; l < line + stage.count(); ++l) {
        ASSERT_TRUE(multiplied.emplace(stage.product(), l, stage.strip()).second);
      }
      ASSERT_LT(stage.part, plan.part_places);
      ASSERT_TRUE(!stage.ends_piece() || ended.emplace(stage.product(), stage.part).second);
    }
  }
  size_t k_blocks = 0;
  size_t pieces = 0;
  for (size_t p = 0; p < kNumStepProducts; ++p) {
    k_blocks += static_cast<size_t>(block.strips[p] * plan.products[p].k_blocks);
    pieces = std::accumulate(block.pieces[p], block.pieces[p] + block.strips[p], pieces);
  }
  EXPECT_EQ(multiplied.size(), k_blocks);
  EXPECT_EQ(ended.size(), pieces);
}

TEST(DecodeStepPlan, DealsEveryPieceOfAStripToOneWarp) {
  for (const DecodeStepShape& s : kTaken) {
    const DecodeStepPlan plan = plan_decode_step(s, kMultiprocessors);
    for (const size_t b : {size_t{0}, plan.blocks.size() / 2, plan.blocks.size() - 1}) {
      SCOPED_TRACE(s.hidden);
      expect_dealt_out(plan, b);
    }
  }
}

}  // namespace
}  // namespace nibble::cuda
