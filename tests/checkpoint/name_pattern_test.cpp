#include "checkpoint/name_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::checkpoint {
namespace {

using ::testing::HasSubstr;

bool matches(std::string_view pattern, std::string_view module) {
  return NamePattern::compile(pattern)->matches(module);
}

TEST(NamePattern, ANameMeansTheModuleAndWhatIsBelowIt) {
  EXPECT_TRUE(matches("lm_head", "lm_head"));
  EXPECT_FALSE(matches("lm_head", "lm_head_x"));
  EXPECT_FALSE(matches("head", "lm_head"));
  EXPECT_TRUE(matches("model.layers.1", "model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(matches("model.layers.1", "model.layers.10.mlp.up_proj"));
  EXPECT_TRUE(matches("model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj"));
  EXPECT_TRUE(matches("model.layers.1.", "model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(matches("", "model.layers.1.mlp.up_proj"));
}

TEST(NamePattern, WildcardsMatchWholeNamesOrWholeAncestors) {
  EXPECT_TRUE(matches("model.layers.1.self_attn*", "model.layers.1.self_attn.q_proj"));
  EXPECT_FALSE(matches("model.layers.1.self_attn*", "model.layers.11.self_attn.q_proj"));
  EXPECT_TRUE(matches("*.self_attn.q_proj", "model.layers.3.self_attn.q_proj"));
  EXPECT_FALSE(matches("*.self_attn.q_proj", "model.layers.3.self_attn.k_proj"));
  EXPECT_TRUE(matches("*mlp.gate", "model.layers.0.mlp.gate"));
  EXPECT_FALSE(matches("*mlp.gate", "model.layers.0.mlp.gate_proj"));
  EXPECT_TRUE(matches("model.layers.*.mlp", "model.layers.7.mlp.down_proj"));
  EXPECT_TRUE(matches("model.layers.1.*", "model.layers.1"));
  EXPECT_TRUE(matches("*lm_head*", "lm_head"));
  EXPECT_FALSE(matches("model.layers.?.mlp", "model.layers.17.mlp.down_proj"));
}

TEST(NamePattern, IgnoresTheWrapperOfMultimodalModels) {
  EXPECT_TRUE(matches("model.language_model.layers.0*", "model.layers.0.mlp.up_proj"));
  EXPECT_TRUE(matches("model.layers.0*", "language_model.model.layers.0.mlp.up_proj"));
  EXPECT_TRUE(matches("language_model.lm_head", "lm_head"));
  EXPECT_FALSE(matches("visual.language_model.x", "visual.x"));
}

TEST(NamePattern, ExpressionsAreAnchoredAtTheStartOnly) {
  EXPECT_FALSE(matches(R"(re:layers\.1\..*)", "model.layers.1.mlp.up_proj"));
  EXPECT_TRUE(matches(R"(re:.*layers\.1\..*)", "model.layers.1.mlp.up_proj"));
  EXPECT_TRUE(matches(R"(re:.*mlp\.gate)", "model.layers.1.mlp.gate_proj"));
  EXPECT_FALSE(matches(R"(re:.*mlp\.gate$)", "model.layers.1.mlp.gate_proj"));
  const auto broken = NamePattern::compile("re:(");
  ASSERT_FALSE(broken.has_value());
  EXPECT_THAT(broken.error().text(), HasSubstr("'re:(' is not a regular expression"));
}

TEST(NamePattern, AHostileExpressionGivesUp) {
  EXPECT_FALSE(matches("re:(a*)*(a*)*(a*)*b$", std::string(60, 'a')));
  EXPECT_FALSE(matches("*a*a*a*a*a*a*a*a*b", std::string(200, 'a')));
}

}  // namespace
}  // namespace nibble::checkpoint
