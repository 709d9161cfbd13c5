#include "checkpoint/unread_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_editor.h"
#include "support/data_dir.h"
#include "support/present.h"

namespace nibble::checkpoint {
namespace {

using ::testing::HasSubstr;

TensorNames all_names(const Checkpoint& checkpoint) {
  const auto names = checkpoint.tensor_names();
  return {names.begin(), names.end()};
}

TEST(UnreadWeights, AreNamedWithTheNumberOfOthers) {
  const auto checkpoint = Checkpoint::open(test::stored_golden_path("qwen3-nvfp4")).value();
  TensorNames read = all_names(checkpoint);
  EXPECT_FALSE(unread_weights(checkpoint, read).has_value());
  read.erase("model.layers.0.self_attn.k_norm.weight");
  read.erase("model.layers.1.mlp.up_proj.weight");
  const Error error = test::present(unread_weights(checkpoint, read));
  EXPECT_EQ(error.where, "model.layers.0.self_attn.k_norm.weight");
  EXPECT_THAT(error.message, HasSubstr("nor 1 others"));
  EXPECT_THAT(error.message, HasSubstr("Qwen3ForCausalLM with num_hidden_layers 2"));
}

TEST(UnreadWeights, ScalesAndTensorsOutsideTheLayersAreLeftAlone) {
  const auto checkpoint = Checkpoint::open(test::stored_golden_path("qwen3-nvfp4")).value();
  TensorNames read = all_names(checkpoint);
  EXPECT_EQ(read.erase("model.layers.0.mlp.up_proj.weight_scale"), 1u);
  EXPECT_EQ(read.erase("model.norm.weight"), 1u);
  EXPECT_FALSE(unread_weights(checkpoint, read).has_value());
}

TEST(UnreadWeights, ALinearIsReadWithItsBias) {
  TensorNames read;
  LinearInfo info;
  info.weight = "a.weight";
  info.bias = "a.bias";
  note_tensors(info, read);
  EXPECT_TRUE(read.contains("a.weight"));
  EXPECT_TRUE(read.contains("a.bias"));
}

}  // namespace
}  // namespace nibble::checkpoint
