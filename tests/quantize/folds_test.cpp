#include "quantize/folds.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "base/number_formats.h"
#include "quantize/unit.h"
#include "support/checkpoint_editor.h"
#include "support/data_dir.h"

namespace nibble::quantize {
namespace {

TEST(Folds, ChannelScalesAreCentredAndDeadChannelsAreLeftAlone) {
  const std::vector<float> scale = channel_scale({1.0f, 4.0f, 0.0f, 16.0f}, 0.5f);
  EXPECT_FLOAT_EQ(scale[0], 0.5f);
  EXPECT_FLOAT_EQ(scale[1], 1.0f);
  EXPECT_EQ(scale[2], 1.0f);
  EXPECT_FLOAT_EQ(scale[3], 2.0f);
  for (const float value : channel_scale({1.0f, 4.0f, 0.0f}, 0.0f)) {
    EXPECT_EQ(value, 1.0f);
  }
  for (const float value : channel_scale({0.0f, 0.0f}, 0.3f)) {
    EXPECT_EQ(value, 1.0f);
  }
}

TEST(Folds, ChannelScalesHaveAnEnd) {
  const std::vector<float> scale = channel_scale({1e-30f, 1.0f, 1e3f}, 0.45f);
  EXPECT_EQ(scale[0], 1.0f / 1024);
  EXPECT_EQ(scale[1], 1024.0f);
  EXPECT_EQ(scale[2], 1024.0f);
  const std::vector<float> wide = channel_scale({1e-6f, 1e6f}, 0.45f);  // no model goes this far
  EXPECT_NEAR(wide[1], std::pow(1e6, 0.45), 0.01);
}

TEST(Folds, ANormAndItsScaleMultiplyBackToTheNorm) {
  std::vector<uint16_t> norm;
  std::vector<float> scale;
  for (int i = 0; i < 200; ++i) {
    norm.push_back(float_to_bf16(std::sin(static_cast<float>(i)) * 3.0f));
    scale.push_back(0.2f + 0.017f * static_cast<float>(i));
  }
  norm.push_back(0);
  scale.push_back(3.0f);
  norm.push_back(float_to_bf16(1e-38f));  // the quotient is no bf16
  scale.push_back(1e30f);
  const std::vector<float> wanted = scale;
  const std::vector<uint16_t> folded = fold_norm(norm, scale);
  for (size_t i = 0; i < norm.size(); ++i) {
    const float before = bf16_to_float(norm[i]);
    EXPECT_NEAR(bf16_to_float(folded[i]) * scale[i], before, 1e-7f * std::fabs(before));
    if (i < 200 && before != 0.0f) {
      EXPECT_NEAR(scale[i] / wanted[i], 1.0f, 0.005f);
      EXPECT_EQ(folded[i] == norm[i], std::fabs(scale[i] - 1.0f) < 1e-6f);
    }
  }
  EXPECT_EQ(scale[200], 1.0f);
  EXPECT_EQ(scale[201], 1.0f);
}

TEST(Folds, ApplyMultipliesColumnsAndDividesRows) {
  LayerFolds folds;
  folds.columns["model.layers.0.mlp.<gate_up>"] = std::vector<float>(16, 2.0f);
  folds.rows["model.layers.0.mlp.up_proj"] = {4.0f, 8.0f};
  checkpoint::LinearInfo info;
  info.n = 2;
  info.k = 16;
  ThreadPool pool(2);
  for (const auto& [module, first, second] :
       {std::tuple{"model.layers.0.mlp.up_proj", 0.5f, 0.25f},
        std::tuple{"model.layers.0.mlp.gate_proj", 2.0f, 2.0f},
        std::tuple{"model.layers.1.mlp.up_proj", 1.0f, 1.0f}}) {
    info.module = module;
    std::vector<float> values(32, 1.0f);
    folds.apply(info, values, pool);
    EXPECT_EQ(values[3], first) << module;
    EXPECT_EQ(values[16 + 3], second) << module;
  }
}

// Channel means from 1e-15 to 1e18, all with the same square: what is left of the smallest ones
// after a division by their scale is more than FP32 can hold.
InputStatistics far_apart(int64_t width, float square) {
  InputStatistics input;
  input.tokens = 4096;
  input.hessian = SquareMatrix(width);
  for (int64_t i = 0; i < width; ++i) {
    const double at = static_cast<double>(i) / static_cast<double>(width - 1);
    input.mean_magnitude.push_back(static_cast<float>(std::pow(10.0, -15.0 + 33.0 * at)));
    input.mean_square.push_back(square);
    input.amax.push_back(1.0f);
    input.hessian.at(i, i) = square;
  }
  return input;
}

TEST(Folds, ExponentsThatTakeTheHessianOutOfFp32AreNotTaken) {
  const auto source = checkpoint::Checkpoint::open(test::stored_golden_path("vendor/llama-base"));
  const std::string attention = "model.layers.0.self_attn.";
  Unit unit;
  for (const auto& [part, n] : {std::pair{"q_proj", 128}, {"k_proj", 64}, {"v_proj", 64}}) {
    unit.linears.push_back(*source->linear(attention + part, n, 128, "x"));
  }
  const std::string group = scale_group(unit.linears.front().module);
  ThreadPool pool(2);
  const Compute compute{panel_kernels(), pool};
  const auto folds_of = [&](float square) {
    LayerStatistics statistics;
    statistics.inputs[group] = far_apart(128, square);
    return choose_folds(*source, "model.layers.0", {&unit}, statistics, compute);
  };
  EXPECT_TRUE(folds_of(1.0f).has_value());
  const auto folds = folds_of(1e34f);
  ASSERT_TRUE(folds.has_value()) << folds.error().text();
  EXPECT_LT(folds->alphas.at(group), 0.3f);  // a 1024th, squared, takes it past the end
  LayerStatistics statistics;
  statistics.inputs[group] = far_apart(128, std::numeric_limits<float>::max());
  const auto refused = quantize_unit(*source, unit, Method::Full, &statistics, nullptr, compute);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().where, group);
}

TEST(Folds, ExponentsThatTakeWeightsOutOfNvfp4AreNotTaken) {
  checkpoint::CheckpointEditor editor(test::stored_golden_path("vendor/llama-base"));
  const std::string query = "model.layers.0.self_attn.q_proj";
  const uint16_t large = float_to_bf16(1000.0f);  // times 172 is what can be read
  std::memcpy(editor.tensor(query + ".weight").bytes.data() + 2 * 127, &large, sizeof large);
  const auto source = editor.open();
  Unit unit;
  for (const auto& [part, n] : {std::pair{"q_proj", 128}, {"k_proj", 64}, {"v_proj", 64}}) {
    unit.linears.push_back(
        *source->linear(std::string("model.layers.0.self_attn.") + part, n, 128, "x"));
  }
  LayerStatistics statistics;
  statistics.inputs[scale_group(query)] = far_apart(128, 1.0f);
  ThreadPool pool(2);
  const Compute compute{panel_kernels(), pool};
  const auto folds = choose_folds(*source, "model.layers.0", {&unit}, statistics, compute);
  ASSERT_TRUE(folds.has_value());
  const auto result = quantize_unit(*source, unit, Method::Full, &statistics, &*folds, compute);
  EXPECT_TRUE(result.has_value()) << result.error().text();
}

}  // namespace
}  // namespace nibble::quantize
