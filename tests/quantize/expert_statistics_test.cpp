#include "quantize/expert_statistics.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "base/number_formats.h"
#include "quantize/calibrate.h"
#include "support/data_dir.h"

namespace nibble::quantize {
namespace {

TEST(ExpertStatistics, TheInnerValuesAreThoseOfSwiGlu) {
  constexpr int64_t kFfn = 24;
  constexpr int64_t kHidden = 16;
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> gate(kFfn * kHidden);
  std::vector<float> up(gate.size());
  for (size_t i = 0; i < gate.size(); ++i) {
    gate[i] = normal(random);
    up[i] = normal(random);
  }
  std::vector<uint16_t> x(40 * kHidden);
  for (uint16_t& value : x) {
    value = float_to_bf16(normal(random));
  }
  std::vector<const uint16_t*> rows;
  for (int i = 0; i < 40; ++i) {
    rows.push_back(x.data() + i * kHidden);
  }
  ThreadPool pool(2);
  const Compute compute{panel_kernels(), pool};
  const auto inner = expert_inner(gate, up, kFfn, kHidden, rows, compute);
  const auto squared = expert_inner({}, up, kFfn, kHidden, rows, compute);
  for (size_t t = 0; t < rows.size(); ++t) {
    for (size_t i = 0; i < kFfn; ++i) {
      double g = 0;
      double u = 0;
      for (size_t j = 0; j < kHidden; ++j) {
        const auto value = static_cast<double>(bf16_to_float(rows[t][j]));
        g += static_cast<double>(gate[i * kHidden + j]) * value;
        u += static_cast<double>(up[i * kHidden + j]) * value;
      }
      const double expected = g / (1 + std::exp(-g)) * u;
      EXPECT_NEAR(bf16_to_float(inner[t * kFfn + i]), expected, 0.02 * std::fabs(expected) + 0.02);
      const double relu = u > 0 ? u * u : 0;
      EXPECT_NEAR(bf16_to_float(squared[t * kFfn + i]), relu, 0.02 * relu + 0.001);
    }
  }
}

TEST(ExpertStatistics, EveryExpertSeesTheTokensThatAreRoutedToIt) {
  const auto path = test::any_golden_path("vendor/qwen3_moe-base");
  if (!path) {
    GTEST_SKIP() << "only the full golden sets have vendor/qwen3_moe-base";
  }
  const auto source = checkpoint::Checkpoint::open(*path);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 96; ++i) {
    tokens.push_back(i * 7 % 100 + 1);
  }
  const auto calibrator = Calibrator::create(*source, tokens, Method::Gptq, 2);
  ASSERT_TRUE(calibrator.has_value()) << calibrator.error().text();
  std::set<std::string, std::less<>> wanted;
  const int64_t experts = source->config().moe.num_experts;
  const std::string prefix = "model.layers.0.mlp.experts.";
  for (int64_t e = 0; e < experts; ++e) {
    wanted.insert(scale_group(prefix + std::to_string(e) + ".up_proj"));
    wanted.insert(scale_group(prefix + std::to_string(e) + ".down_proj"));
  }
  const auto statistics = (*calibrator)->run_layer(0, wanted, {});
  ASSERT_TRUE(statistics.has_value()) << statistics.error().text();
  int64_t routed = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const InputStatistics* up = statistics->find(prefix + std::to_string(e) + ".gate_proj");
    ASSERT_NE(up, nullptr);
    routed += up->tokens;
    const InputStatistics* down = statistics->find(prefix + std::to_string(e) + ".down_proj");
    EXPECT_EQ(down == nullptr ? 0 : down->tokens, up->tokens);
    if (down != nullptr) {
      EXPECT_EQ(down->hessian.n(), source->config().moe.moe_intermediate_size);
      EXPECT_GT(down->mean_square[0], 0.0f);
    }
  }
  EXPECT_EQ(routed, 96 * source->config().moe.num_experts_per_tok);
}

}  // namespace
}  // namespace nibble::quantize
