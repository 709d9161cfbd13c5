#include "checkpoint/quantize_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::checkpoint {
namespace {

using ::testing::HasSubstr;

std::string reason(const std::string& module, int64_t k = 64, std::vector<std::string> extra = {}) {
  LinearInfo info;
  info.module = module;
  info.n = 32;
  info.k = k;
  ModelConfig config;
  config.num_hidden_layers = 4;
  return Recipe::make(extra)->reason_to_keep(info, config);
}

TEST(Recipe, KeepsHeadsRoutersAndDraftLayers) {
  EXPECT_EQ(reason("lm_head"), "output head");
  EXPECT_EQ(reason("model.layers.0.mlp.gate"), "router");
  EXPECT_EQ(reason("model.layers.0.block_sparse_moe.gate"), "router");
  EXPECT_EQ(reason("model.layers.0.linear_attn.in_proj_a"), "small and sensitive");
  EXPECT_EQ(reason("model.layers.4.self_attn.q_proj"), "draft layer");
  EXPECT_EQ(reason("mtp.layers.0.self_attn.q_proj"), "draft layer");
  EXPECT_EQ(reason("model.visual.blocks.0.attn.qkv"), "vision");
}

TEST(Recipe, QuantizesTheLinearsOfTheLayers) {
  for (const char* name : {"self_attn.q_proj",
                           "self_attn.o_proj",
                           "mlp.gate_proj",
                           "mlp.down_proj",
                           "mlp.experts.11.up_proj",
                           "mlp.shared_experts.gate_proj",
                           "linear_attn.in_proj_qkv",
                           "block_sparse_moe.experts.0.w2"}) {
    EXPECT_EQ(reason(std::string("model.layers.3.") + name), "") << name;
  }
}

TEST(Recipe, KeepsWhatHasNoWholeBlocksAndWhatTheUserNames) {
  EXPECT_THAT(reason("model.layers.0.mlp.up_proj", 72), HasSubstr("72 columns"));
  EXPECT_EQ(reason("model.layers.0.mlp.up_proj", 64, {"model.layers.0*"}), "asked for");
  EXPECT_EQ(reason("model.layers.1.mlp.up_proj", 64, {"model.layers.0*"}), "");
  EXPECT_THAT(Recipe::make({"re:("}).error().text(), HasSubstr("re:("));
}

TEST(Recipe, LinearsOfOneFusedMatrixShareAScale) {
  const std::string layer = "model.layers.0.";
  EXPECT_EQ(scale_group(layer + "self_attn.q_proj"), scale_group(layer + "self_attn.v_proj"));
  EXPECT_EQ(scale_group(layer + "mlp.gate_proj"), scale_group(layer + "mlp.up_proj"));
  EXPECT_EQ(scale_group(layer + "e.0.w1"), scale_group(layer + "e.0.w3"));
  EXPECT_NE(scale_group(layer + "e.0.w1"), scale_group(layer + "e.0.w2"));
  EXPECT_NE(scale_group(layer + "e.0.w1"), scale_group(layer + "e.1.w1"));
  EXPECT_NE(scale_group(layer + "self_attn.q_proj"), scale_group(layer + "self_attn.o_proj"));
  EXPECT_NE(scale_group(layer + "mlp.up_proj"), scale_group(layer + "mlp.down_proj"));
}

}  // namespace
}  // namespace nibble::checkpoint
