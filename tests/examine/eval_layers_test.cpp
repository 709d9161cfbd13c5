#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "examine/eval.h"
#include "support/data_dir.h"
#include "support/engine_harness.h"

namespace nibble::examine {
namespace {

std::vector<int32_t> text(int32_t count) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back((i * i * 7 + 3) % 512);
  }
  return tokens;
}

TEST(EvalLayers, MeasuresEveryLayerAndProposesTheCheapest) {
  const engine::EngineConfig config = test::tiny_config(test::data_path("golden/llama-nvfp4"));
  const EvalOptions options{.window = 60, .windows = 1};
  const auto report = evaluate_per_layer(config, text(60), options, 0.0);
  ASSERT_TRUE(report.has_value()) << report.error().text();
  ASSERT_GE(report->layers.size(), 2u);
  ASSERT_EQ(report->proposal.size(), report->layers.size());
  for (const LayerCost& layer : report->layers) {
    EXPECT_GT(layer.kl, 0.0) << layer.layer;  // quantized activations always cost something
  }
  for (const Nvfp4ModeRule& rule : report->proposal) {
    EXPECT_EQ(rule.mode, Nvfp4Mode::W4A16);
  }
  const auto generous = evaluate_per_layer(config, text(60), options, 1e9);
  for (const Nvfp4ModeRule& rule : generous->proposal) {
    EXPECT_EQ(rule.mode, Nvfp4Mode::W4A4);
  }
  // The proposal is something that a model takes.
  engine::EngineConfig proposed = config;
  proposed.nvfp4_mode = Nvfp4Mode::W4A16;
  proposed.nvfp4_rules = generous->proposal;
  engine::EngineConfig all = config;
  all.nvfp4_mode = Nvfp4Mode::W4A4;
  const auto same = evaluate_divergence(proposed, all, text(60), options);
  ASSERT_TRUE(same.has_value()) << same.error().text();
  EXPECT_NEAR(*same->all.kl, 0.0, 1e-9);
  EXPECT_EQ(mode_file(generous->proposal).begin()->value().as_string(), "w4a4");
  EXPECT_THAT(to_text(*generous), ::testing::HasSubstr("layers in w4a4"));
}

}  // namespace
}  // namespace nibble::examine
