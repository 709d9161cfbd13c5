#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "examine/eval.h"
#include "support/data_dir.h"
#include "support/engine_harness.h"

namespace nibble::examine {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Optional;

std::vector<int32_t> text(int32_t count) {
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back((i * i * 7 + 3) % 512);
  }
  return tokens;
}

TEST(EvalLayers, MeasuresEveryLayerAndProposesTheCheapest) {
  const engine::EngineConfig config = test::tiny_config(test::data_path("golden/llama-nvfp4"));
  const EvalWindows windows = {text(60)};
  const auto report = evaluate_per_layer(config, windows, 0.0);
  ASSERT_TRUE(report.has_value()) << report.error().text();
  ASSERT_GE(report->layers.size(), 2u);
  ASSERT_EQ(report->proposal.size(), report->layers.size());
  for (const LayerCost& layer : report->layers) {
    EXPECT_GT(layer.kl, 0.0) << layer.layer;  // quantized activations always cost something
  }
  for (const Nvfp4ModeRule& rule : report->proposal) {
    EXPECT_EQ(rule.mode, Nvfp4Mode::W4A16);
  }
  const auto generous = evaluate_per_layer(config, windows, 1e9);
  for (const Nvfp4ModeRule& rule : generous->proposal) {
    EXPECT_EQ(rule.mode, Nvfp4Mode::W4A4);
  }
  // The proposal is something that a model takes.
  engine::EngineConfig proposed = config;
  proposed.nvfp4_mode = Nvfp4Mode::W4A16;
  proposed.nvfp4_rules = generous->proposal;
  engine::EngineConfig all = config;
  all.nvfp4_mode = Nvfp4Mode::W4A4;
  const auto same = evaluate_divergence(proposed, all, windows);
  ASSERT_TRUE(same.has_value()) << same.error().text();
  EXPECT_THAT(same->all.kl, Optional(DoubleNear(0.0, 1e-9)));
  EXPECT_EQ(mode_file(generous->proposal).begin()->value().as_string(), "w4a4");
  EXPECT_THAT(to_text(*generous), HasSubstr("layers in w4a4"));
}

TEST(EvalLayers, GivesWhatEachLayerAloneDivergesByHoweverTheWindowsAreGrouped) {
  const engine::EngineConfig config = test::tiny_config(test::data_path("golden/llama-nvfp4"));
  const EvalWindows windows = {text(40), text(31), text(45)};
  engine::EngineConfig base = config;
  base.nvfp4_mode = Nvfp4Mode::W4A16;
  engine::EngineConfig changed = base;
  changed.nvfp4_rules = {{"model.layers.1.*", Nvfp4Mode::W4A4}};
  const auto alone = evaluate_divergence(changed, base, windows);
  ASSERT_TRUE(alone.has_value()) << alone.error().text();
  std::vector<std::pair<int64_t, int64_t>> steps;
  const auto count = [&](int64_t done, int64_t total) { steps.emplace_back(done, total); };
  const auto together = evaluate_per_layer(config, windows, 0.0, count);
  const size_t layers = together->layers.size();
  EXPECT_EQ(steps.size(), layers);
  EXPECT_EQ(alone->all.kl, together->layers[1].kl);
  EXPECT_NE(together->layers[0].kl, together->layers[1].kl);
  steps.clear();
  const auto one_by_one = evaluate_per_layer(config, windows, 0.0, count, 1);
  EXPECT_EQ(steps.size(), 3 * layers);
  EXPECT_EQ(steps.back().first, steps.back().second);
  for (size_t i = 0; i < layers; ++i) {
    EXPECT_NEAR(one_by_one->layers[i].kl, together->layers[i].kl, 1e-12);
  }
}

TEST(EvalLayers, KeepsAsManyWindowsAsFitButOneAtLeast) {
  const EvalWindows windows(5, std::vector<int32_t>(2048));
  const uint64_t one = uint64_t{2048} * 50000 * 4;
  EXPECT_EQ(windows_at_once(windows, 0, 50000, 3 * one), 3u);
  EXPECT_EQ(windows_at_once(windows, 3, 50000, 3 * one), 2u);
  EXPECT_EQ(windows_at_once(windows, 0, 50000, 3 * one - 1), 2u);
  EXPECT_EQ(windows_at_once(windows, 4, 50000, 0), 1u);
  EXPECT_EQ(windows_at_once(windows, 0, 50000, 100 * one), 5u);
}

TEST(EvalLayers, RefusesWhatCannotBeScored) {
  const engine::EngineConfig config = test::tiny_config(test::data_path("golden/llama-nvfp4"));
  EXPECT_THAT(evaluate_per_layer(config, {{7}}, 0).error().text(),
              HasSubstr("sequence 1 has 1 tokens"));
  std::vector<int32_t> tokens = text(60);
  tokens[7] = 1 << 20;
  EXPECT_THAT(evaluate_per_layer(config, {text(9), tokens}, 0).error().text(),
              HasSubstr("out of the model's vocabulary"));
}

}  // namespace
}  // namespace nibble::examine
