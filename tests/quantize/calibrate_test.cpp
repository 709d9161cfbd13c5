#include "quantize/calibrate.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/number_formats.h"
#include "support/checkpoint_editor.h"
#include "support/data_dir.h"
#include "support/present.h"

namespace nibble::quantize {
namespace {

using ::testing::HasSubstr;

std::vector<int32_t> some_tokens(size_t count) {
  std::vector<int32_t> tokens;
  tokens.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>((i * 37 + i / 5) % 90 + 3));
  }
  return tokens;
}

const std::set<std::string, std::less<>> kWanted = {"model.layers.0.self_attn.<qkv>",
                                                    "model.layers.0.mlp.down_proj"};

TEST(Calibrate, GivesStatisticsOfWhatIsWantedAndNothingElse) {
  const auto source = checkpoint::Checkpoint::open(test::stored_golden_path("vendor/llama-base"));
  const auto calibrator = Calibrator::create(*source, some_tokens(101), Method::Full, 2);
  ASSERT_TRUE(calibrator.has_value()) << calibrator.error().text();
  EXPECT_EQ((*calibrator)->num_tokens(), 96);
  const auto statistics = (*calibrator)->run_layer(0, kWanted, {});
  ASSERT_TRUE(statistics.has_value()) << statistics.error().text();
  EXPECT_EQ(statistics->inputs.size(), 2u);
  const InputStatistics* qkv = statistics->find("model.layers.0.self_attn.k_proj");
  ASSERT_NE(qkv, nullptr);
  EXPECT_EQ(qkv->tokens, 96);
  EXPECT_EQ(qkv->hessian.n(), 128);
  EXPECT_EQ(statistics->find("model.layers.0.self_attn.o_proj"), nullptr);
  const auto& heads = statistics->value_heads.at("model.layers.0.self_attn.v_proj");
  EXPECT_EQ(heads.size(), static_cast<size_t>(source->config().num_key_value_heads));
  // Attention averages, so the mixed tokens have less energy than the tokens.
  double plain = 0;
  double mixed = 0;
  for (int64_t i = 0; i < 128; ++i) {
    plain += static_cast<double>(qkv->hessian.at(i, i));
    mixed += static_cast<double>(heads[0].at(i, i));
  }
  EXPECT_LT(mixed, plain);
  EXPECT_GT(mixed, 0.01 * plain);
}

TEST(Calibrate, ThreadsChangeNoBit) {
  const auto source = checkpoint::Checkpoint::open(test::stored_golden_path("vendor/llama-base"));
  std::vector<LayerStatistics> found;
  std::vector<std::vector<uint16_t>> hidden;
  for (const int threads : {1, 3}) {
    const auto calibrator = Calibrator::create(*source, some_tokens(64), Method::Full, threads);
    found.push_back(*(*calibrator)->run_layer(0, kWanted, {}));
    ASSERT_TRUE((*calibrator)->run_layer(1, {}, {}).has_value());
    hidden.emplace_back((*calibrator)->hidden().begin(), (*calibrator)->hidden().end());
  }
  EXPECT_EQ(hidden[0], hidden[1]);
  for (const auto& [group, input] : found[0].inputs) {
    const InputStatistics& other = found[1].inputs.at(group);
    EXPECT_EQ(input.mean_magnitude, other.mean_magnitude);
    for (int64_t i = 0; i < input.hessian.n(); ++i) {
      for (int64_t j = 0; j < input.hessian.n(); ++j) {
        ASSERT_EQ(input.hessian.at(i, j), other.hessian.at(i, j)) << group;
      }
    }
  }
}

TEST(Calibrate, ARestoredStateGoesOnTheSameWay) {
  const auto source = checkpoint::Checkpoint::open(test::stored_golden_path("vendor/llama-base"));
  const auto whole = Calibrator::create(*source, some_tokens(64), Method::Sweep, 1);
  ASSERT_TRUE((*whole)->run_layer(0, {}, {}).has_value());
  std::vector<uint16_t> middle((*whole)->hidden().begin(), (*whole)->hidden().end());
  ASSERT_TRUE((*whole)->run_layer(1, {}, {}).has_value());
  const auto resumed = Calibrator::create(*source, some_tokens(64), Method::Sweep, 1);
  const std::vector<uint16_t> fresh((*resumed)->hidden().begin(), (*resumed)->hidden().end());
  EXPECT_NE(fresh, middle);
  ASSERT_TRUE((*resumed)->restore(middle).has_value());
  ASSERT_TRUE((*resumed)->run_layer(1, {}, {}).has_value());
  EXPECT_TRUE(std::equal((*whole)->hidden().begin(),
                         (*whole)->hidden().end(),
                         (*resumed)->hidden().begin(),
                         (*resumed)->hidden().end()));
  EXPECT_FALSE((*resumed)->restore({1, 2}).has_value());
}

TEST(Calibrate, TheHeadReadsTheStatesAfterTheLastNorm) {
  const auto source = checkpoint::Checkpoint::open(test::stored_golden_path("vendor/llama-base"));
  const auto calibrator = Calibrator::create(*source, some_tokens(64), Method::Sweep, 2);
  ASSERT_TRUE((*calibrator)->run_layer(0, {}, {}).has_value());
  const float before = test::present(*(*calibrator)->head_input_amax());
  ASSERT_TRUE((*calibrator)->run_layer(1, {}, {}).has_value());
  const float amax = test::present(*(*calibrator)->head_input_amax());
  EXPECT_NE(before, amax);

  const auto bytes = *source->read_as("model.norm.weight", DType::BF16, Shape{128}, "x");
  std::vector<uint16_t> norm(128);
  std::memcpy(norm.data(), bytes.data(), bytes.size());
  const auto hidden = (*calibrator)->hidden();
  double expected = 0;
  for (size_t t = 0; t < hidden.size() / 128; ++t) {
    double squares = 0;
    for (size_t i = 0; i < 128; ++i) {
      const auto value = static_cast<double>(bf16_to_float(hidden[t * 128 + i]));
      squares += value * value / 128;
    }
    for (size_t i = 0; i < 128; ++i) {
      const double normed = static_cast<double>(bf16_to_float(hidden[t * 128 + i])) /
                            std::sqrt(squares + source->config().rms_norm_eps) *
                            static_cast<double>(bf16_to_float(norm[i]));
      expected = std::max(expected, std::fabs(normed));
    }
  }
  EXPECT_NEAR(amax, expected, expected / 128);  // it is rounded to bf16
}

TEST(Calibrate, RefusesTooLittleTextAndForeignTokens) {
  const auto source = checkpoint::Checkpoint::open(test::stored_golden_path("vendor/llama-base"));
  EXPECT_THAT(Calibrator::create(*source, some_tokens(31), Method::Sweep, 1).error().text(),
              HasSubstr("expected at least 32 tokens, found 31"));
  auto tokens = some_tokens(32);
  tokens[5] = 1 << 30;
  EXPECT_THAT(Calibrator::create(*source, tokens, Method::Sweep, 1).error().text(),
              HasSubstr("out of the model's vocabulary"));
}

TEST(Calibrate, RefusesActivationsWhoseSquaresOverflow) {
  checkpoint::CheckpointEditor editor(test::stored_golden_path("vendor/llama-base"));
  auto& norm = editor.tensor("model.layers.0.input_layernorm.weight");
  const auto fill = [&](float value) {
    const uint16_t word = float_to_bf16(value);
    for (size_t i = 0; i < norm.bytes.size(); i += sizeof(word)) {
      std::memcpy(norm.bytes.data() + i, &word, sizeof(word));
    }
    const auto source = editor.open();
    const auto calibrator = Calibrator::create(*source, some_tokens(256), Method::Full, 1);
    return (*calibrator)->run_layer(0, kWanted, {});
  };
  EXPECT_TRUE(fill(1e3f).has_value());
  const auto result = fill(3e18f);  // the mean of the squares is a float, their sum is not
  ASSERT_FALSE(result.has_value());
  EXPECT_THAT(result.error().text(), HasSubstr("<qkv>"));
  EXPECT_THAT(result.error().text(), HasSubstr("not finite"));
}

}  // namespace
}  // namespace nibble::quantize
