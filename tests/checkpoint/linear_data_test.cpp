#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "support/checkpoint_editor.h"
#include "support/data_dir.h"
#include "support/present.h"

namespace nibble::checkpoint {
namespace {

using ::testing::HasSubstr;

const std::string kDown = "model.layers.1.mlp.down_proj";

CheckpointEditor golden(const std::string& name) {
  return CheckpointEditor(test::stored_golden_path(name));
}

TEST(LinearData, RefusesNanAndNegativeBlockScalesUnlessTheBlockIsZero) {
  for (uint8_t bad : {uint8_t{0x7F}, uint8_t{0xFF}, uint8_t{0xB8}}) {
    auto editor = golden("llama-nvfp4");
    editor.tensor(kDown + ".weight_scale").bytes[5 * 16 + 3] = std::byte{bad};
    const auto checkpoint = editor.open();
    const auto info = checkpoint->linear(kDown, 128, 256, "x");
    ASSERT_TRUE(info.has_value());
    EXPECT_THAT(checkpoint->read_linear(*info).error().text(),
                HasSubstr(kDown + ".weight_scale: block scale [5, 3] is"));

    auto& codes = editor.tensor(kDown + ".weight").bytes;
    for (size_t i = 0; i < 8; ++i) {
      codes[5 * 128 + 3 * 8 + i] = std::byte{0x80};  // 0 and -0
    }
    const auto zeroed = editor.open();
    const auto data = zeroed->read_linear(*zeroed->linear(kDown, 128, 256, "x"));
    ASSERT_TRUE(data.has_value()) << data.error().text();
    EXPECT_EQ(data->weight_scale[5 * 16 + 3], std::byte{0});
  }
}

TEST(LinearData, IgnoresAnActivationScaleOfAnFp8WeightThatIsNotOneNumber) {
  auto editor = golden("llama");
  editor.tensor(kDown + ".weight") = {DType::E4M3, {128, 256}, std::vector<std::byte>(128 * 256)};
  editor.set_f32(kDown + ".weight_scale", 0.5f);
  const Shape shapes[] = {{1}, {0}, {2}};
  for (const Shape& shape : shapes) {
    const auto bytes = static_cast<size_t>(4 * num_elements(shape));
    editor.tensors()[kDown + ".input_scale"] = {
        DType::F32, shape, std::vector<std::byte>(bytes, std::byte{0x3F})};
    const auto checkpoint = editor.open();
    ASSERT_TRUE(checkpoint.has_value());
    EXPECT_EQ(problem_texts(*checkpoint, Problem::Severity::Error), "");
    const auto info = checkpoint->linear(kDown, 128, 256, "x");
    ASSERT_TRUE(info.has_value()) << info.error().text();
    const auto data = checkpoint->read_linear(*info);
    ASSERT_TRUE(data.has_value());
    EXPECT_EQ(data->input_scale.has_value(), num_elements(shape) == 1) << to_string(shape);
  }
}

TEST(LinearData, RepeatsTheScalesOfGroupSize32) {
  const auto checkpoint =
      Checkpoint::open(test::stored_golden_path("vendor/llama-modelopt-mlp-weight-only"));
  ASSERT_TRUE(checkpoint.has_value());
  const auto info = checkpoint->linear(kDown, 128, 256, "x");
  ASSERT_TRUE(info.has_value()) << info.error().text();
  EXPECT_EQ(info->group_size, 32);
  std::vector<std::byte> stored(128 * 8);
  ASSERT_TRUE(checkpoint->read(info->weight_scale, stored).has_value());
  const auto data = checkpoint->read_linear(*info);
  ASSERT_EQ(data->weight_scale.size(), size_t{128 * 16});
  for (size_t i = 0; i < stored.size(); ++i) {
    EXPECT_EQ(data->weight_scale[2 * i], stored[i]);
    EXPECT_EQ(data->weight_scale[2 * i + 1], stored[i]);
  }
}

TEST(LinearData, TurnsTheDivisorsOfCompressedTensorsIntoMultipliers) {
  const auto checkpoint = Checkpoint::open(test::stored_golden_path("vendor/llama-ct-nvfp4"));
  ASSERT_TRUE(checkpoint.has_value());
  const auto info = checkpoint->linear(kDown, 128, 256, "x");
  ASSERT_TRUE(info.has_value()) << info.error().text();
  EXPECT_TRUE(info->inverse_scales);
  float divisor = 0;
  ASSERT_TRUE(
      checkpoint
          ->read(kDown + ".weight_global_scale", std::as_writable_bytes(std::span(&divisor, 1)))
          .has_value());
  EXPECT_GT(divisor, 100.0f);
  const auto data = checkpoint->read_linear(*info);
  EXPECT_EQ(data->weight_scale_2, 1.0f / divisor);
  EXPECT_LT(test::present(data->input_scale), 1.0f);
}

}  // namespace
}  // namespace nibble::checkpoint
