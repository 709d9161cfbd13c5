#include "checkpoint/linear_table.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_editor.h"
#include "support/data_dir.h"

namespace nibble::checkpoint {
namespace {

using ::testing::HasSubstr;

const std::string kDown = "model.layers.1.mlp.down_proj";

CheckpointEditor golden(const std::string& name) {
  return CheckpointEditor(test::stored_golden_path(name));
}

std::string errors_of(const Checkpoint& checkpoint) {
  return problem_texts(checkpoint, Problem::Severity::Error);
}

struct Damage {
  const char* what;
  void (*apply)(CheckpointEditor&);
  std::string message;
};

TEST(LinearTable, ReportsEveryDamagedTensorByName) {
  const Damage cases[] = {
      {"no block scales",
       [](CheckpointEditor& e) { e.remove(kDown + ".weight_scale"); },
       kDown + ".weight_scale: missing; " + kDown + ".weight is stored as 4-bit codes"},
      {"no global scale",
       [](CheckpointEditor& e) { e.remove(kDown + ".weight_scale_2"); },
       kDown + ".weight_scale_2: missing"},
      {"global scale NaN",
       [](CheckpointEditor& e) { e.set_f32(kDown + ".weight_scale_2", NAN); },
       kDown + ".weight_scale_2: expected a finite positive scale, found NaN"},
      {"global scale infinite",
       [](CheckpointEditor& e) { e.set_f32(kDown + ".weight_scale_2", INFINITY); },
       kDown + ".weight_scale_2: expected a finite positive scale, found Infinity"},
      {"global scale zero",
       [](CheckpointEditor& e) { e.set_f32(kDown + ".weight_scale_2", 0.0f); },
       kDown + ".weight_scale_2: expected a finite positive scale, found 0"},
      {"global scale negative",
       [](CheckpointEditor& e) { e.set_f32(kDown + ".weight_scale_2", -0.5f); },
       kDown + ".weight_scale_2: expected a finite positive scale, found -0.5"},
      {"a divisor under the multiplier's name",
       [](CheckpointEditor& e) { e.set_f32(kDown + ".weight_scale_2", 3584.0f); },
       kDown + ".weight_scale_2: found 3584, expected a multiplier"},
      {"global scale of the wrong type",
       [](CheckpointEditor& e) { e.tensor(kDown + ".weight_scale_2").dtype = DType::I32; },
       kDown + ".weight_scale_2: expected one f32 number, found i32 []"},
      {"block scales of the wrong shape",
       [](CheckpointEditor& e) { e.tensor(kDown + ".weight_scale").shape = {256, 8}; },
       kDown + ".weight_scale: expected f8_e4m3 [128, 16]"},
      {"block scales for groups of 64",
       [](CheckpointEditor& e) {
         auto& scale = e.tensor(kDown + ".weight_scale");
         scale.shape = {128, 4};
         scale.bytes.resize(128 * 4);
       },
       "found f8_e4m3 [128, 4]; the checkpoint may use group size 64"},
      {"weight of the wrong type",
       [](CheckpointEditor& e) { e.tensor(kDown + ".weight").dtype = DType::I8; },
       kDown + ".weight: expected bf16, f16, f32, u8 (two 4-bit codes) or f8_e4m3, found i8"},
      {"bf16 although the config says NVFP4",
       [](CheckpointEditor& e) {
         e.tensor(kDown + ".weight") = {
             DType::BF16, {128, 256}, std::vector<std::byte>(128 * 256 * 2)};
         e.remove(kDown + ".weight_scale");
         e.remove(kDown + ".weight_scale_2");
       },
       kDown + ".weight: stored in full precision, but config.json.quantization_config says "
               "NVFP4"},
  };
  EXPECT_EQ(errors_of(*golden("llama-nvfp4").open()), "");
  for (const Damage& damage : cases) {
    auto editor = golden("llama-nvfp4");
    damage.apply(editor);
    const auto checkpoint = editor.open();
    ASSERT_TRUE(checkpoint.has_value()) << damage.what;
    EXPECT_THAT(errors_of(*checkpoint), HasSubstr(damage.message)) << damage.what;
    EXPECT_FALSE(checkpoint->linear(kDown, 128, 256, "x").has_value()) << damage.what;
    EXPECT_FALSE(checkpoint->require_servable().has_value()) << damage.what;
  }
}

}  // namespace
}  // namespace nibble::checkpoint
