// What the kernel of a whole decode step takes, and how it deals a layer out. No GPU needed.
#include "backends/cuda/decode_step_plan.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <numeric>
#include <set>
#include <span>
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
  EXPECT_THAT(with([](auto& s) { s.inner = 32768; }), HasSubstr("leave no shared memory"));
  // A small GPU: its multiprocessors would have too many rows each.
  EXPECT_THAT(with([](auto&) {}, 16), HasSubstr("strips of 16 rows a multiprocessor"));
}

TEST(DecodeStepShared, HasAPlaceOfItsOwnForEverything) {
  for (const DecodeStepShape& s : kTaken) {
    const StepShared p = place_step_shared(s, decode_step_sizes(s, kMultiprocessors));
    const std::vector<int> places{p.x_at[0],
                                  p.x_at[1],
                                  p.rows_at,
                                  p.parts_at,
                                  p.sums_at,
                                  p.turns_at,
                                  p.matrices_at,
                                  p.layers_at,
                                  p.block_at,
                                  p.runs_at,
                                  p.attention_at,
                                  p.words_at,
                                  p.barriers_at,
                                  p.pool_at};
    EXPECT_TRUE(std::is_sorted(places.begin(), places.end(), std::less_equal<>{}));
    for (const int place : places) {
      EXPECT_EQ(place % 128, 0);
    }
    EXPECT_GE(p.x_at[1] - p.x_at[0], 2 * s.hidden);
    EXPECT_GE(p.rows_at - p.x_at[1], 2 * std::max(s.inner, s.heads * s.head_dim));
    EXPECT_GE(p.ring_beside, kStepMinRing);
    EXPECT_GE(p.ring_alone, p.ring_beside);
    EXPECT_EQ(p.attention_bytes % 128, 0);
    const int rings = kStepWarps * kStepStageBytes;
    EXPECT_LE(p.pool_at + p.attention_bytes + p.ring_beside * rings, kStepSharedBytes);
    EXPECT_LE(p.pool_at + p.ring_alone * rings, kStepSharedBytes);
  }
}

// Attention's last stages lie over both x, of which the second is free when most are asked for.
TEST(DecodeStepShared, HasAStageMoreForAttentionWhereRingsStayAsLong) {
  const auto place = [](const DecodeStepShape& s) {
    return place_step_shared(s, decode_step_sizes(s, kMultiprocessors));
  };
  for (const size_t i : {0, 1, 3}) {
    const StepShared p = place(kTaken[i]);
    EXPECT_EQ(p.more_stages, 1) << kTaken[i].hidden;
    EXPECT_EQ(p.x_at[0], 0);
    EXPECT_LE(p.x_at[1], kStepMoreBytes / 4);
    EXPECT_GE(p.rows_at, kStepMoreBytes);
    EXPECT_GE(p.sums_at - p.parts_at, step_more_score_bytes(kTaken[i].head_dim));
  }
  EXPECT_EQ(place(kTaken[4]).more_stages, 0) << "the first x is too long";
  const StepShared full = place(shape(16, 1024, 8, 8, 128, 2048));  // its rings leave no room
  EXPECT_EQ(full.more_stages, 0);
  EXPECT_LT(full.rows_at, kStepMoreBytes);
}

TEST(DecodeStepShared, LeavesTwoStagesBesideTheLongestRowsAndTables) {
  const DecodeStepShape s = shape(128, 8192, 64, 8, 128, 32768);
  ASSERT_EQ(decode_step_refusal(s, kMultiprocessors), "");
  EXPECT_EQ(place_step_shared(s, decode_step_sizes(s, kMultiprocessors)).ring_beside, kStepMinRing);
}

TEST(DecodeStepRefusal, IsNotTheOnlyReasonAgainstIt) {
  EXPECT_TRUE(decode_step_pays(kTaken[1], kMultiprocessors));
  EXPECT_TRUE(decode_step_pays(kTaken[3], kMultiprocessors));
  EXPECT_FALSE(decode_step_pays(kTaken[0], kMultiprocessors))
      << "half as many strips as multiprocessors";
  EXPECT_FALSE(decode_step_pays(kTaken[4], kMultiprocessors)) << "rows of two pieces a thread";
  EXPECT_FALSE(decode_step_pays(shape(16, 1792, 28, 4, 64, 8192), kMultiprocessors));
  EXPECT_FALSE(decode_step_pays(shape(16, 4352, 34, 17, 128, 8192), kMultiprocessors));
  EXPECT_TRUE(decode_step_pays(shape(32, 4096, 32, 8, 128, 14336), kMultiprocessors));
  EXPECT_TRUE(decode_step_pays(shape(36, 2560, 32, 8, 128, 9728), kMultiprocessors));
  EXPECT_FALSE(decode_step_pays(shape(28, 3584, 28, 4, 128, 18944), kMultiprocessors))
      << "rings shorter than any that was measured";
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

class DealtOut {
 public:
  DealtOut(const DecodeStepPlan& plan, size_t b) : plan_(plan), b_(b), block_(plan.blocks[b]) {}

  std::span<const StepRun> runs(size_t warp, size_t p) const {
    const size_t i = warp * kNumStepProducts + p;
    return std::span(plan_.runs)
        .subspan(b_ * static_cast<size_t>(plan_.sizes.most_runs) + block_.run_begin[i],
                 static_cast<size_t>(block_.run_begin[i + 1] - block_.run_begin[i]));
  }
  static int blocks_of(std::span<const StepRun> runs) {
    return std::accumulate(
        runs.begin(), runs.end(), 0, [](int sum, const StepRun& run) { return sum + run.count(); });
  }

  // Every K64 block of the strips is multiplied once, and every piece is ended by one warp, in its
  // own place.
  void expect_complete() const {
    std::set<std::tuple<size_t, int, int>> multiplied;  // product, line, strip of the tile
    std::set<std::pair<size_t, int>> ended;             // product, part
    for (size_t p = 0; p < kNumStepProducts; ++p) {
      for (size_t w = 0; w < kStepWarps; ++w) {
        for (const StepRun& run : runs(w, p)) {
          expect_run(run, p, &multiplied);
          ASSERT_TRUE(run.hands_on() || ended.emplace(p, run.part).second);
        }
      }
    }
    size_t k_blocks = 0;
    size_t pieces = 0;
    for (size_t p = 0; p < kNumStepProducts; ++p) {
      k_blocks += static_cast<size_t>(block_.strips[p] * plan_.products[p].k_blocks);
      pieces = std::accumulate(block_.pieces[p], block_.pieces[p] + block_.strips[p], pieces);
    }
    EXPECT_EQ(multiplied.size(), k_blocks);
    EXPECT_EQ(ended.size(), pieces);
  }
  // What a warp leaves to the one before it is the first thing that it does, and what that one
  // goes on with is the last: the rest of the same piece.
  void expect_shared_in_order() const {
    for (size_t p = 0; p < kNumStepProducts; ++p) {
      for (size_t w = 0; w < kStepWarps; ++w) {
        const auto own = runs(w, p);
        for (size_t i = 0; i < own.size(); ++i) {
          ASSERT_TRUE(!own[i].takes_over() || i + 1 == own.size());
          ASSERT_TRUE(!own[i].hands_on() || i == 0);
          ASSERT_FALSE(own[i].takes_over() && own[i].hands_on());
        }
        const bool takes = !own.empty() && own.back().takes_over();
        const auto next = w + 1 < kStepWarps ? runs(w + 1, p) : std::span<const StepRun>{};
        ASSERT_EQ(takes, !next.empty() && next.front().hands_on());
        if (takes) {
          ASSERT_EQ(own.back().part, next.front().part);
          ASSERT_EQ(own.back().x_block(), next.front().x_block() + next.front().count());
        }
      }
    }
  }
  // The table of a warp's runs of a layer is gone through in a circle.
  void expect_circle() const {
    for (size_t w = 0; w < kStepWarps; ++w) {
      const size_t begin = block_.run_begin[w * kNumStepProducts];
      const size_t end = block_.run_begin[(w + 1) * kNumStepProducts];
      const auto first = static_cast<int64_t>(b_) * plan_.sizes.most_runs;
      for (size_t i = begin; i < end; ++i) {
        const StepRun& run = plan_.runs[static_cast<size_t>(first) + i];
        ASSERT_EQ(run.is_last(), i + 1 == end);
        const auto next = static_cast<int>(run.is_last() ? begin : i + 1);
        ASSERT_EQ(run.advance, (next - static_cast<int>(i)) * static_cast<int>(sizeof(StepRun)));
      }
    }
  }

 private:
  void expect_run(const StepRun& run,
                  size_t p,
                  std::set<std::tuple<size_t, int, int>>* multiplied) const {
    const StepProductPlan& product = plan_.products[p];
    ASSERT_EQ(static_cast<size_t>(run.product()), p);
    const auto record = static_cast<int>(run.codes_at() % kTileRecordBytes);
    const int load = static_cast<int>(run.codes_at() / kTileRecordBytes);
    const int strip_of_tile = record / kRecordBytes * 4 + record % kRecordBytes / 512;
    ASSERT_EQ(record % kRecordBytes % 512, 0);
    ASSERT_EQ(record % kRecordBytes + run.scales, kRecordCodeBytes + strip_of_tile % 4 * 64);
    ASSERT_GT(run.stages, 0);
    const int line = load + run.first();
    // All that is loaded is inside of the matrix.
    ASSERT_LE(load + kStepStage, row_tiles_of(product.n) * product.k_blocks);
    ASSERT_LE(run.first() + run.first_count(), kStepStage);
    ASSERT_EQ(line % product.k_blocks, run.x_block());
    ASSERT_EQ(line / product.k_blocks, (line + run.count() - 1) / product.k_blocks);
    const int strip = line / product.k_blocks * kStripsOfTile + strip_of_tile;
    ASSERT_GE(strip, block_.first_strip[p]);
    ASSERT_LT(strip, block_.first_strip[p] + block_.strips[p]);
    for (int l = line; l < line + run.count(); ++l) {
      ASSERT_TRUE(multiplied->emplace(p, l, strip_of_tile).second);
    }
    ASSERT_LT(run.part, plan_.sizes.part_places);
  }

  const DecodeStepPlan& plan_;
  size_t b_;
  const StepBlock& block_;
};

TEST(DecodeStepPlan, DealsEveryPieceOfAStripOut) {
  for (const DecodeStepShape& s : kTaken) {
    const DecodeStepPlan plan = plan_decode_step(s, kMultiprocessors);
    ASSERT_EQ(plan.runs.size(), plan.blocks.size() * static_cast<size_t>(plan.sizes.most_runs));
    for (size_t b = 0; b < plan.blocks.size(); b += b % 5 + 1) {
      SCOPED_TRACE(std::to_string(s.hidden) + ", block " + std::to_string(b));
      const DealtOut dealt(plan, b);
      dealt.expect_complete();
      dealt.expect_shared_in_order();
      dealt.expect_circle();
    }
  }
}

// Qwen3-8B: a warp has little more than the sixteenth of its block, or the longest piece.
TEST(DecodeStepPlan, GivesWarpsTheSameToDo) {
  const DecodeStepPlan plan = plan_decode_step(kTaken[1], kMultiprocessors);
  constexpr std::array<int, kNumStepProducts> kMost = {13, 16, 52, 24};
  int shared = 0;
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    const DealtOut dealt(plan, b);
    for (size_t p = 0; p < kNumStepProducts; ++p) {
      for (size_t w = 0; w < kStepWarps; ++w) {
        const auto runs = dealt.runs(w, p);
        EXPECT_LE(DealtOut::blocks_of(runs), kMost[p]) << "block " << b << " warp " << w;
        shared += !runs.empty() && runs.back().takes_over() ? 1 : 0;
      }
    }
  }
  EXPECT_GT(shared, 0) << "without shared pieces 63 for gate and up";
}

}  // namespace
}  // namespace nibble::cuda
