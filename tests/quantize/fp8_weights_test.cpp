#include "quantize/fp8_weights.h"

#include <cmath>
#include <span>

#include <gtest/gtest.h>

#include "base/number_formats.h"
#include "support/checkpoint_editor.h"
#include "support/data_dir.h"

namespace nibble::quantize {
namespace {

TEST(Fp8Weights, RoundToTheNearestLevelOfTheScale) {
  const auto source = checkpoint::Checkpoint::open(test::stored_golden_path("vendor/llama-base"));
  ASSERT_TRUE(source.has_value());
  const checkpoint::LinearInfo& info = source->linears().front();
  auto weight = SourceWeight::read(*source, info);
  ThreadPool pool(2);
  const float amax = *weight_amax(*weight, pool);
  const Fp8Matrix matrix = encode_fp8(*weight, fp8_scale(amax), pool);
  weight->widen(pool);
  const std::span<const float> values = weight->values();
  ASSERT_EQ(matrix.codes.size(), values.size());
  float largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const float decoded = e4m3_to_float(matrix.codes[i]) * matrix.scale;
    largest = std::max(largest, std::fabs(decoded));
    // Half a step of 3 bits of mantissa, or of the subnormals.
    ASSERT_LE(std::fabs(values[i] - decoded),
              std::max(std::fabs(values[i]) / 15.9f, matrix.scale * 0.00098f));
    ASSERT_NE(matrix.codes[i], 0x80);
  }
  EXPECT_NEAR(largest, amax, amax * 1e-6f);
  EXPECT_GT(matrix.relative_error, 0.015);
  EXPECT_LT(matrix.relative_error, 0.035);
  // A scale twice too small clips.
  EXPECT_GT(encode_fp8(*weight, fp8_scale(amax) / 8, pool).max_error, 0.5 * amax);
}

TEST(Fp8Weights, AllZerosHaveScaleOne) { EXPECT_EQ(fp8_scale(0.0f), 1.0f); }

}  // namespace
}  // namespace nibble::quantize
