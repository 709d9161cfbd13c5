#include "model/rope_table.h"

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

namespace nibble::model {
namespace {

using checkpoint::RopeConfig;

RopeConfig rope_of(RopeConfig::Type type, double theta, double factor = 1.0) {
  RopeConfig rope;
  rope.type = type;
  rope.theta = theta;
  rope.factor = factor;
  return rope;
}

RopeConfig plain_rope(double theta) { return rope_of(RopeConfig::Type::Default, theta); }

TEST(RopeTable, DefaultFrequenciesArePowersOfTheta) {
  const std::vector<double> f = rope_frequencies(plain_rope(10000.0), 8, 2048);
  ASSERT_EQ(f.size(), 4u);
  EXPECT_DOUBLE_EQ(f[0], 1.0);
  EXPECT_NEAR(f[1], 0.1, 1e-15);
  EXPECT_NEAR(f[3], 0.001, 1e-15);
}

TEST(RopeTable, LinearScalingDividesEveryFrequency) {
  const std::vector<double> f =
      rope_frequencies(rope_of(RopeConfig::Type::Linear, 10000.0, 4.0), 8, 2048);
  EXPECT_DOUBLE_EQ(f[0], 0.25);
  EXPECT_NEAR(f[1], 0.025, 1e-15);
}

TEST(RopeTable, Llama3KeepsFastPairsSlowsSlowOnesAndBlendsBetween) {
  RopeConfig rope = rope_of(RopeConfig::Type::Llama3, 500000.0, 8.0);
  rope.low_freq_factor = 1.0;
  rope.high_freq_factor = 4.0;
  rope.original_max_position = 8192;
  const std::vector<double> plain = rope_frequencies(plain_rope(500000.0), 128, 131072);
  const std::vector<double> scaled = rope_frequencies(rope, 128, 131072);
  int kept = 0;
  int slowed = 0;
  int blended = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2 * std::numbers::pi / plain[i];
    if (wavelength < 2048) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i]);
      ++kept;
    } else if (wavelength > 8192) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 8);
      ++slowed;
    } else {
      EXPECT_LT(scaled[i], plain[i]);
      EXPECT_GT(scaled[i], plain[i] / 8);
      ++blended;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(slowed, 0);
  EXPECT_GT(blended, 0);
}

TEST(RopeTable, YarnInterpolatesSlowPairsAndScalesTheMagnitude) {
  RopeConfig rope = rope_of(RopeConfig::Type::Yarn, 1e6, 4.0);
  rope.original_max_position = 32768;
  const std::vector<double> plain = rope_frequencies(plain_rope(1e6), 128, 131072);
  const std::vector<double> scaled = rope_frequencies(rope, 128, 131072);
  EXPECT_DOUBLE_EQ(scaled.front(), plain.front());
  EXPECT_NEAR(scaled.back(), plain.back() / 4, 1e-12);
  EXPECT_NEAR(rope_magnitude(rope), 1.1386294, 1e-6);  // 0.1 ln 4 + 1, as published for Qwen2
  rope.attention_factor = 1.5;
  EXPECT_DOUBLE_EQ(rope_magnitude(rope), 1.5);
  rope.attention_factor.reset();
  rope.mscale = 1.0;
  rope.mscale_all_dim = 1.0;
  EXPECT_DOUBLE_EQ(rope_magnitude(rope), 1.0);
}

TEST(RopeTable, RowsHoldCosinesThenSinesOfDoublePrecisionAngles) {
  const int64_t positions = 100001;
  const std::vector<float> table = rope_table(plain_rope(10000.0), 4, positions, positions);
  const float* last = table.data() + (positions - 1) * 4;
  EXPECT_FLOAT_EQ(last[0], static_cast<float>(std::cos(100000.0)));
  EXPECT_FLOAT_EQ(last[1], static_cast<float>(std::cos(1000.0)));
  EXPECT_FLOAT_EQ(last[2], static_cast<float>(std::sin(100000.0)));
  EXPECT_FLOAT_EQ(last[3], static_cast<float>(std::sin(1000.0)));
  EXPECT_EQ(table[0], 1.0f);
  EXPECT_EQ(table[2], 0.0f);
}

}  // namespace
}  // namespace nibble::model
