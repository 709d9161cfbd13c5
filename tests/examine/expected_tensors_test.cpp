#include "examine/expected_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_editor.h"
#include "support/data_dir.h"

namespace nibble::examine {
namespace {

std::vector<Error> missing_tensors(const checkpoint::Checkpoint& checkpoint) {
  return expected_tensors(checkpoint).errors;
}

using checkpoint::CheckpointEditor;
using ::testing::HasSubstr;

TEST(ExpectedTensors, CompleteCheckpointsOfEachShapeMissNothing) {
  for (const char* name : {"llama",
                           "smollm2",
                           "qwen3-nvfp4",
                           "qwen2-nvfp4",
                           "qwen3_moe",
                           "vendor/qwen3_moe-modelopt-nvfp4",
                           "vendor/mixtral-modelopt-nvfp4"}) {
    const auto path = test::any_golden_path(name);
    if (!path) {
      continue;  // only the full sets have it
    }
    const auto checkpoint = checkpoint::Checkpoint::open(*path);
    for (const Error& error : missing_tensors(*checkpoint)) {
      ADD_FAILURE() << name << ": " << error.text();
    }
  }
}

TEST(ExpectedTensors, EachMissingTensorIsNamed) {
  for (const char* name : {"model.embed_tokens.weight",
                           "model.layers.1.self_attn.k_norm.weight",
                           "model.layers.0.post_attention_layernorm.weight",
                           "model.norm.weight"}) {
    CheckpointEditor editor(test::stored_golden_path("qwen3-nvfp4"));
    editor.remove(name);
    const auto checkpoint = editor.open();
    const auto errors = missing_tensors(*checkpoint);
    ASSERT_EQ(errors.size(), 1u) << name;
    EXPECT_THAT(errors[0].text(), HasSubstr(std::string(name) + ": missing"));
  }
}

TEST(ExpectedTensors, AConfigOfAnotherModelIsNoticedByWhatItLeavesUnread) {
  CheckpointEditor fewer(test::stored_golden_path("llama-nvfp4"));
  fewer.config()["num_hidden_layers"] = 1;
  auto errors = missing_tensors(*fewer.open());
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_THAT(errors[0].text(), HasSubstr("model.layers.1."));
  CheckpointEditor other(test::stored_golden_path("qwen3-nvfp4"));
  other.config()["architectures"] = boost::json::array{"LlamaForCausalLM"};
  other.config()["model_type"] = "llama";
  errors = missing_tensors(*other.open());
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_THAT(errors[0].text(), HasSubstr("model.layers.0.self_attn.k_norm.weight: stored, but"));
}

TEST(ExpectedTensors, ATiedHeadNeedsNoTensorAndAnUntiedOneDoes) {
  CheckpointEditor editor(test::stored_golden_path("llama"));
  editor.remove("lm_head.weight");
  const auto untied = editor.open();
  ASSERT_EQ(missing_tensors(*untied).size(), 1u);
  EXPECT_THAT(missing_tensors(*untied)[0].text(),
              HasSubstr("lm_head.weight: missing; expected a linear of shape [512, 128] (from "
                        "vocab_size x hidden_size, tie_word_embeddings false)"));
  editor.config()["tie_word_embeddings"] = true;
  EXPECT_TRUE(missing_tensors(*editor.open()).empty());
}

TEST(ExpectedTensors, AWrongSizeNamesTheConfigKeys) {
  CheckpointEditor editor(test::stored_golden_path("llama-nvfp4"));
  editor.config()["intermediate_size"] = 512;
  const auto checkpoint = editor.open();
  const auto errors = missing_tensors(*checkpoint);
  ASSERT_EQ(errors.size(), 6u);
  EXPECT_THAT(errors[0].text(), HasSubstr("(from intermediate_size x hidden_size)"));
}

TEST(ExpectedTensors, AConfigWithMillionsOfExpertsDoesNotKeepItBusy) {
  CheckpointEditor editor(test::stored_golden_path("llama"));
  editor.config()["architectures"] = boost::json::array{"Qwen3MoeForCausalLM"};
  editor.config()["num_experts"] = 1 << 24;
  editor.config()["num_experts_per_tok"] = 2;
  const auto checkpoint = editor.open();
  ASSERT_TRUE(checkpoint.has_value());
  EXPECT_EQ(missing_tensors(*checkpoint).size(), 500u);
}

TEST(ExpectedTensors, SaysNothingAboutUnknownArchitectures) {
  CheckpointEditor editor(test::stored_golden_path("llama"));
  editor.config()["architectures"] = boost::json::array{"SomethingElse"};
  editor.remove("lm_head.weight");
  EXPECT_TRUE(missing_tensors(*editor.open()).empty());
}

}  // namespace
}  // namespace nibble::examine
