#include "model/stored_values.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "support/data_dir.h"

namespace nibble::model {
namespace {

const std::string kDown = "model.layers.0.mlp.down_proj";

TEST(StoredValues, PlainTensorsAreConvertedAndCutToTheFirstRows) {
  const std::string directory = test::data_path("golden/llama-nvfp4");
  const StoredValues norm = read_stored_values(directory, "model.norm.weight", 5).value();
  EXPECT_EQ(norm.shape, (Shape{128}));
  EXPECT_EQ(norm.rows, 5);
  EXPECT_EQ(norm.values.size(), 5u);
  const StoredValues embedding =
      read_stored_values(directory, "model.embed_tokens.weight", 3).value();
  EXPECT_EQ(embedding.values.size(), 3u * 128u);
  const StoredValues scalar = read_stored_values(directory, kDown + ".weight_scale_2", 100).value();
  EXPECT_EQ(scalar.values.size(), 1u);
}

TEST(StoredValues, CodedLinearsAreDequantised) {
  const std::string directory = test::data_path("golden/llama-nvfp4");
  const StoredValues weight = read_stored_values(directory, kDown + ".weight", 2).value();
  EXPECT_EQ(weight.shape, (Shape{128, 256}));  // 128 bytes a row hold 256 codes
  ASSERT_EQ(weight.values.size(), 2u * 256u);
  const StoredValues scales = read_stored_values(directory, kDown + ".weight_scale", 1).value();
  const float global =
      read_stored_values(directory, kDown + ".weight_scale_2", 1).value().values[0];
  // The largest code of a block is at most 6 times its scale.
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_LE(std::abs(weight.values[i]), 6.0f * scales.values[0] * global * 1.0001f);
  }
  EXPECT_THAT(weight.values, testing::Contains(testing::Gt(0.0f)));
}

TEST(StoredValues, UnknownNamesAreNotFound) {
  const auto missing = read_stored_values(test::data_path("golden/llama-nvfp4"), "nothing", 1);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ErrorCode::NotFound);
  EXPECT_FALSE(read_stored_values("/nowhere", "model.norm.weight", 1).has_value());
}

}  // namespace
}  // namespace nibble::model
