#include "quantize/encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_editor.h"
#include "support/data_dir.h"

namespace nibble::quantize {
namespace {

using checkpoint::CheckpointEditor;
using ::testing::HasSubstr;

const std::string kUp = "model.layers.0.mlp.up_proj";

CheckpointEditor base() { return CheckpointEditor(test::stored_golden_path("vendor/llama-base")); }

TEST(Encode, MeasuresTheErrorOfWhatItWrites) {
  auto editor = base();
  const auto source = editor.open();
  const auto info = *source->linear(kUp, 256, 128, "x");
  const auto weight = SourceWeight::read(*source, info);
  ThreadPool pool(2);
  const float amax = *weight_amax(*weight, pool);
  const Encoded encoded = encode_weight(*weight, Method::Max, amax, amax / 2688.0f, pool);

  std::vector<float> decoded(256 * 128);
  quant::decode(encoded.matrix.codes.data(),
                encoded.matrix.block_scales.data(),
                amax / 2688.0f,
                256,
                128,
                decoded.data());
  const std::vector<float> values = *source->read_weight(info);
  double error = 0;
  double total = 0;
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(values[i]) - decoded[i]);
    error += difference * difference;
    total += static_cast<double>(values[i]) * values[i];
    largest = std::max(largest, difference);
  }
  EXPECT_NEAR(encoded.report.relative_error, std::sqrt(error / total), 1e-9);
  EXPECT_EQ(encoded.report.max_error, largest);
  EXPECT_GT(encoded.report.relative_error, 0.07);
  EXPECT_LT(encoded.report.relative_error, 0.12);
  EXPECT_EQ(encoded.report.zero_blocks, 0);
}

TEST(Encode, TheNumberOfThreadsChangesNothing) {
  auto editor = base();
  const auto source = editor.open();
  const auto weight = SourceWeight::read(*source, *source->linear(kUp, 256, 128, "x"));
  ThreadPool one(1);
  ThreadPool three(3);
  const Encoded a = encode_weight(*weight, Method::Max, 1.0f, 0.001f, one);
  const Encoded b = encode_weight(*weight, Method::Max, 1.0f, 0.001f, three);
  EXPECT_EQ(a.matrix.codes, b.matrix.codes);
  EXPECT_EQ(a.matrix.block_scales, b.matrix.block_scales);
  EXPECT_EQ(a.report.relative_error, b.report.relative_error);
  EXPECT_EQ(*weight_amax(*weight, one), *weight_amax(*weight, three));
}

TEST(Encode, AWidenedWeightHasTheValuesItHad) {
  auto editor = base();
  const auto source = editor.open();
  const auto info = *source->linear(kUp, 256, 128, "x");
  auto weight = SourceWeight::read(*source, info);
  ThreadPool pool(2);
  const float amax = *weight_amax(*weight, pool);
  EXPECT_DEATH(weight->values(), "not widened: " + kUp);
  weight->widen(pool);
  const std::vector<float> expected = *source->read_weight(info);
  const std::span<const float> values = weight->values();
  EXPECT_TRUE(std::equal(values.begin(), values.end(), expected.begin(), expected.end()));
  EXPECT_EQ(*weight_amax(*weight, pool), amax);
  weight->values()[300] = 2 * amax;
  EXPECT_EQ(*weight_amax(*weight, pool), 2 * amax);
}

TEST(Encode, FourOverSixLeavesLessErrorThanMax) {
  auto editor = base();
  const auto source = editor.open();
  const auto weight = SourceWeight::read(*source, *source->linear(kUp, 256, 128, "x"));
  ThreadPool pool(2);
  const float amax = *weight_amax(*weight, pool);
  double error[2];
  for (const Method method : {Method::Max, Method::FourOverSix}) {
    error[method == Method::Max ? 0 : 1] =
        encode_weight(*weight, method, amax, global_scale_of(method, amax), pool)
            .report.relative_error;
  }
  EXPECT_LT(error[1], 0.96 * error[0]);
  EXPECT_GT(error[1], 0.8 * error[0]);
}

TEST(Encode, CountsZeroBlocksAndBlocksThatUnderflow) {
  auto editor = base();
  auto& stored = editor.tensor(kUp + ".weight");
  std::fill_n(stored.bytes.begin(), 16 * 2, std::byte{0});
  const uint16_t tiny = 0x2000;  // bf16 of about 1e-19
  for (size_t i = 16; i < 32; ++i) {
    std::memcpy(stored.bytes.data() + 2 * i, &tiny, 2);
  }
  const auto source = editor.open();
  const auto weight = SourceWeight::read(*source, *source->linear(kUp, 256, 128, "x"));
  ThreadPool pool(1);
  const Encoded encoded = encode_weight(*weight, Method::Max, 1.0f, 0.0001f, pool);
  EXPECT_EQ(encoded.report.zero_blocks, 1);
  EXPECT_EQ(encoded.report.smallest_scale, 1);
}

TEST(Encode, NamesTheTensorAndThePlaceOfAValueThatIsNotFinite) {
  for (uint16_t bits : {uint16_t{0x7FC0}, uint16_t{0xFF80}}) {
    auto editor = base();
    std::memcpy(editor.tensor(kUp + ".weight").bytes.data() + 2 * (130 * 128 + 5), &bits, 2);
    const auto source = editor.open();
    const auto weight = SourceWeight::read(*source, *source->linear(kUp, 256, 128, "x"));
    ThreadPool pool(3);
    const auto amax = weight_amax(*weight, pool);
    ASSERT_FALSE(amax.has_value());
    EXPECT_THAT(amax.error().text(), HasSubstr(kUp + ".weight: expected finite values"));
    EXPECT_THAT(amax.error().text(), HasSubstr("at element 5 of row 130"));
  }
}

}  // namespace
}  // namespace nibble::quantize
