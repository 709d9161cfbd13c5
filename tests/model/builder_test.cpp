#include "model/builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_editor.h"
#include "support/data_dir.h"
#include "support/forward_harness.h"

namespace nibble::model {
namespace {

using ::testing::HasSubstr;

checkpoint::CheckpointEditor golden(const std::string& name) {
  return checkpoint::CheckpointEditor(test::stored_golden_path(name));
}

// "loaded", or what load_model() says about the edited checkpoint.
std::string outcome(checkpoint::CheckpointEditor& editor) {
  editor.write();
  const auto harness = test::ForwardHarness::load(editor.directory().path());
  return harness ? "loaded" : harness.error().text();
}

std::string outcome_with(std::string_view key, boost::json::value value) {
  auto editor = golden("llama");
  editor.config()[key] = std::move(value);
  return outcome(editor);
}

TEST(Builder, NamesTheTensorBeforeTheSizesOfAWrongConfigBecomeMemory) {
  auto unchanged = golden("llama");
  EXPECT_EQ(outcome(unchanged), "loaded");
  EXPECT_THAT(outcome_with("vocab_size", int64_t{1} << 24),
              HasSubstr("model.embed_tokens.weight: expected bf16 [16777216, 128] (from vocab_size "
                        "x hidden_size), found"));
  auto editor = golden("llama");
  editor.remove("model.norm.weight");
  EXPECT_THAT(outcome(editor), HasSubstr("model.norm.weight: missing; expected bf16 [128]"));
}

TEST(Builder, RefusesAConfigThatLeavesLayersOfTheCheckpointUnread) {
  EXPECT_THAT(outcome_with("num_hidden_layers", 1), HasSubstr("model.layers.1."));
  EXPECT_THAT(outcome_with("num_hidden_layers", 1), HasSubstr("does not read it"));
}

TEST(Builder, RefusesARotaryTableLargerThanAnyModelNeeds) {
  EXPECT_EQ(outcome_with("max_position_embeddings", 4096), "loaded");
  EXPECT_THAT(outcome_with("max_position_embeddings", int64_t{1} << 30),
              HasSubstr("context_length: a context of 1073741824 tokens"));
}

TEST(Builder, RotatesAsManyChannelsAsTheConfigSays) {
  auto whole = golden("llama");
  whole.write();
  const auto all = test::ForwardHarness::load(whole.directory().path()).value();
  auto half = golden("llama");
  half.config()["partial_rotary_factor"] = 0.5;
  half.write();
  const auto some = test::ForwardHarness::load(half.directory().path()).value();
  const std::vector<int32_t> ids = {5, 6, 7, 8, 9};
  const std::vector<float> a = all->logits(ids);
  const std::vector<float> b = some->logits(ids);
  const size_t vocab = a.size() / ids.size();
  // Position 0 is not rotated at all, so only the later ones can differ.
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(vocab), b.begin()));
  EXPECT_NE(a, b);
  EXPECT_THAT(outcome_with("partial_rotary_factor", 0.01),
              HasSubstr("config.json: head_dim: expected an even number of rotated channels"));
}

}  // namespace
}  // namespace nibble::model
