#include "quantize/folds.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "base/number_formats.h"

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

}  // namespace
}  // namespace nibble::quantize
