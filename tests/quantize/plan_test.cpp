#include "quantize/plan.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_editor.h"
#include "support/data_dir.h"

namespace nibble::quantize {
namespace {

using checkpoint::CheckpointEditor;
using ::testing::HasSubstr;

constexpr uint64_t kNoLimit = uint64_t{1} << 40;

TEST(Plan, EveryTensorIsWrittenExactlyOnce) {
  const auto source = checkpoint::Checkpoint::open(test::stored_golden_path("vendor/llama-base"));
  const auto plan = make_plan(*source, *Recipe::make({}), {kNoLimit});
  ASSERT_TRUE(plan.has_value()) << plan.error().text();
  ASSERT_EQ(plan->shards.size(), 1u);
  std::set<std::string> names;
  uint64_t bytes = 0;
  for (const Unit& unit : plan->shards[0]) {
    for (const auto& entry : unit.entries) {
      EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
      bytes += static_cast<uint64_t>(num_elements(entry.shape) * size_of(entry.dtype));
    }
  }
  EXPECT_EQ(bytes, plan->output_bytes);
  EXPECT_EQ(plan->num_quantized, 14);
  EXPECT_EQ(names.size(), 14 * 3 + 7u);  // head, embedding, five norms
  EXPECT_TRUE(names.contains("lm_head.weight"));
  EXPECT_TRUE(names.contains("model.layers.1.self_attn.k_proj.weight_scale_2"));
}

TEST(Plan, GroupsShareAUnitAndShardsStayBelowTheLimit) {
  const auto source = checkpoint::Checkpoint::open(test::stored_golden_path("vendor/llama-base"));
  const uint64_t limit = 150'000;
  const auto plan = make_plan(*source, *Recipe::make({}), {limit});
  ASSERT_GT(plan->shards.size(), 2u);
  size_t groups = 0;
  for (const auto& shard : plan->shards) {
    uint64_t bytes = 0;
    for (const Unit& unit : shard) {
      bytes += unit.output_bytes;
      groups += unit.linears.size() == 3 ? 1 : 0;
    }
    EXPECT_LE(bytes, limit);
  }
  EXPECT_EQ(groups, 2u);  // q, k, v of two layers
}

TEST(Plan, RefusesWhatIsNvfp4AlreadyAndWhatLeavesNothingToDo) {
  const auto done = checkpoint::Checkpoint::open(test::stored_golden_path("llama-nvfp4"));
  EXPECT_THAT(make_plan(*done, *Recipe::make({}), {kNoLimit}).error().text(),
              HasSubstr("the source is NVFP4 already"));
  const auto source = checkpoint::Checkpoint::open(test::stored_golden_path("vendor/llama-base"));
  EXPECT_THAT(make_plan(*source, *Recipe::make({"*"}), {kNoLimit}).error().text(),
              HasSubstr("no linear to quantize"));
  EXPECT_THAT(make_plan(*source, *Recipe::make({"*.down_prj"}), {kNoLimit}).error().text(),
              HasSubstr("exclude *.down_prj: matches no linear"));
}

const Unit* find_head(const Plan& plan) {
  for (const auto& shard : plan.shards) {
    for (const Unit& unit : shard) {
      if (!unit.linears.empty() && unit.linears.front().module == "lm_head") {
        return &unit;
      }
    }
  }
  return nullptr;
}

TEST(Plan, TheHeadHasTheFormItIsAskedForWhateverPatternsMatch) {
  const auto source = checkpoint::Checkpoint::open(test::stored_golden_path("vendor/llama-base"));
  for (const Precision precision : {Precision::Nvfp4, Precision::Fp8}) {
    for (const bool candidates : {false, true}) {
      const auto plan = make_plan(*source,
                                  *Recipe::make({}, true),
                                  {kNoLimit, {"*head", "*.down_proj"}, candidates, precision});
      ASSERT_TRUE(plan.has_value()) << plan.error().text();
      const Unit* head = find_head(*plan);
      ASSERT_NE(head, nullptr);
      EXPECT_EQ(head->nvfp4, precision == Precision::Nvfp4);
      EXPECT_EQ(head->fp8, precision == Precision::Fp8);
      EXPECT_FALSE(head->entries.empty());
    }
  }
}

TEST(Plan, SaysWhyAHeadCannotBeQuantized) {
  const auto source = checkpoint::Checkpoint::open(test::stored_golden_path("vendor/llama-base"));
  EXPECT_THAT(
      make_plan(*source, *Recipe::make({"lm_head"}, true), {kNoLimit, {}, false, Precision::Fp8})
          .error()
          .text(),
      HasSubstr("cannot quantize lm_head, it is kept: asked for"));
  // A tied head takes its columns from the embedding.
  CheckpointEditor editor(test::stored_golden_path("vendor/llama-base"));
  editor.config()["tie_word_embeddings"] = true;
  editor.remove("lm_head.weight");
  auto& table = editor.tensor("model.embed_tokens.weight");
  const auto tied = editor.open();
  EXPECT_TRUE(make_plan(*tied, *Recipe::make({}, true), {kNoLimit, {}, false, Precision::Nvfp4})
                  .has_value());
  table.shape[1] -= 8;
  table.bytes.resize(static_cast<size_t>(num_elements(table.shape)) * 2);
  const auto odd = editor.open();
  EXPECT_THAT(make_plan(*odd, *Recipe::make({}, true), {kNoLimit, {}, false, Precision::Nvfp4})
                  .error()
                  .text(),
              HasSubstr("columns are not a multiple of 16"));
}

}  // namespace
}  // namespace nibble::quantize
