#include "checkpoint/checkpoint.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/number_formats.h"
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
std::string warnings_of(const Checkpoint& checkpoint) {
  return problem_texts(checkpoint, Problem::Severity::Warning);
}

TEST(Checkpoint, ReadsABf16Checkpoint) {
  const auto checkpoint = Checkpoint::open(test::stored_golden_path("llama"));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().text();
  EXPECT_TRUE(checkpoint->require_servable().has_value());
  EXPECT_EQ(checkpoint->problems().size(), 0u);
  EXPECT_EQ(checkpoint->config().hidden_size, 128);
  EXPECT_EQ(checkpoint->linears().size(), 15u);  // 7 a layer and the head
  const auto info = checkpoint->linear(kDown, 128, 256, "hidden_size x intermediate_size");
  ASSERT_TRUE(info.has_value()) << info.error().text();
  EXPECT_EQ(info->format, LinearInfo::Format::Bf16);
  const auto data = checkpoint->read_linear(*info);
  ASSERT_TRUE(data.has_value());
  EXPECT_EQ(data->weight.size(), size_t{128 * 256 * 2});
  EXPECT_EQ(data->weight_dtype, DType::BF16);
  const auto norm = checkpoint->read_as("model.norm.weight", DType::F32, {128}, "hidden_size");
  ASSERT_TRUE(norm.has_value()) << norm.error().text();
  EXPECT_EQ(norm->size(), size_t{128 * 4});
}

TEST(Checkpoint, ReadsAModelOptCheckpoint) {
  const auto checkpoint = Checkpoint::open(test::stored_golden_path("llama-nvfp4"));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().text();
  EXPECT_TRUE(checkpoint->require_servable().has_value());
  const auto info = checkpoint->linear(kDown, 128, 256, "hidden_size x intermediate_size");
  ASSERT_TRUE(info.has_value()) << info.error().text();
  EXPECT_EQ(info->format, LinearInfo::Format::Nvfp4);
  EXPECT_EQ(info->claim, QuantAlgo::Nvfp4);
  EXPECT_EQ(info->group_size, 16);
  const auto data = checkpoint->read_linear(*info);
  ASSERT_TRUE(data.has_value()) << data.error().text();
  EXPECT_EQ(data->weight.size(), size_t{128 * 128});
  EXPECT_EQ(data->weight_scale.size(), size_t{128 * 16});
  EXPECT_TRUE(data->input_scale.has_value());
  EXPECT_GT(data->weight_scale_2, 0.0f);
  const auto head = checkpoint->linear("lm_head", 512, 128, "vocab_size x hidden_size");
  ASSERT_TRUE(head.has_value());
  EXPECT_EQ(head->format, LinearInfo::Format::Bf16);
  EXPECT_EQ(checkpoint->read_linear(*head)->input_scale, std::nullopt);
}

TEST(Checkpoint, OpensEveryGoldenSetWithoutAnError) {
  for (const char* name : {"llama",
                           "llama-nvfp4",
                           "llama-nvfp4-awq",
                           "smollm2",
                           "qwen2",
                           "qwen2-nvfp4",
                           "qwen3",
                           "qwen3-nvfp4",
                           "qwen3_moe",
                           "qwen3_moe-nvfp4",
                           "deepseek_v2_lite-nvfp4",
                           "deepseek_v3-nvfp4",
                           "nemotron_h-nvfp4",
                           "nemotron_h_latent-nvfp4-mixed",
                           "qwen3_next-nvfp4",
                           "qwen3_5-nvfp4",
                           "qwen3_5_moe-nvfp4",
                           "vendor/llama-base",
                           "vendor/llama-modelopt-nvfp4",
                           "vendor/llama-modelopt-nvfp4-awq",
                           "vendor/llama-modelopt-w4a16",
                           "vendor/llama-modelopt-mlp-weight-only",
                           "vendor/llama-ct-nvfp4",
                           "vendor/llama-ct-nvfp4a16",
                           "vendor/qwen3-modelopt-nvfp4",
                           "vendor/qwen3_moe-modelopt-nvfp4",
                           "vendor/mixtral-modelopt-nvfp4",
                           "vendor/qwen3_moe-modelopt-experts-only",
                           "vendor/qwen3_moe-ct-nvfp4a16"}) {
    const auto path = test::any_golden_path(name);
    if (!path) {
      continue;  // only the full sets have it
    }
    const auto checkpoint = Checkpoint::open(*path);
    ASSERT_TRUE(checkpoint.has_value()) << name << ": " << checkpoint.error().text();
    EXPECT_EQ(errors_of(*checkpoint), "") << name;
    for (const LinearInfo& info : checkpoint->linears()) {
      const auto data = checkpoint->read_linear(info);
      EXPECT_TRUE(data.has_value()) << name << ": " << data.error().text();
    }
  }
}

TEST(Checkpoint, SaysWhatIsMissingAndWhichNamesAreClose) {
  auto editor = golden("llama-nvfp4");
  editor.rename(kDown + ".weight", "model.layers.1.mlp.dwon_proj.weight");
  const auto checkpoint = editor.open();
  ASSERT_TRUE(checkpoint.has_value());
  EXPECT_THAT(errors_of(*checkpoint),
              HasSubstr(kDown + ".weight: missing, although " + kDown + ".weight_scale is stored"));
  EXPECT_THAT(checkpoint->require_servable().error().text(), HasSubstr(kDown));
  EXPECT_FALSE(checkpoint->linear(kDown, 128, 256, "x").has_value());

  auto plain = golden("llama");
  plain.rename(kDown + ".weight", "model.layers.1.mlp.dwon_proj.weight");
  const auto bf16 = plain.open();
  EXPECT_THAT(bf16->linear(kDown, 128, 256, "hidden_size x intermediate_size").error().text(),
              HasSubstr(kDown + ".weight: missing; expected a linear of shape [128, 256] (from "
                                "hidden_size x intermediate_size); similar names that are there: "
                                "model.layers.1.mlp.dwon_proj.weight"));
  EXPECT_THAT(
      bf16->read_as("model.nrm.weight", DType::BF16, {128}, "hidden_size").error().text(),
      HasSubstr("model.nrm.weight: missing; expected bf16 [128] (from hidden_size); similar names "
                "that are there: model.norm.weight"));
}

TEST(Checkpoint, SaysWhichShapeAndTypeItExpected) {
  const auto checkpoint = golden("llama-nvfp4").open();
  EXPECT_THAT(checkpoint->linear(kDown, 128, 512, "hidden_size x intermediate_size").error().text(),
              HasSubstr(kDown + ".weight: expected [128, 512] (from hidden_size x "
                                "intermediate_size), found [128, 128] u8, 4-bit codes of "
                                "[128, 256]"));
  EXPECT_THAT(
      checkpoint->read_as("model.norm.weight", DType::BF16, {64}, "hidden_size").error().text(),
      HasSubstr("expected bf16 [64] (from hidden_size), found bf16 [128]"));
  EXPECT_THAT(checkpoint->read_as(kDown + ".weight", DType::BF16, {128, 256}, "x").error().text(),
              HasSubstr("found u8 [128, 128]"));
}

TEST(Checkpoint, AWeightThatIsThereButNotAMatrixIsNotCalledMissing) {
  auto flat = golden("llama");
  flat.tensor(kDown + ".weight").shape = {128 * 256};
  EXPECT_THAT(flat.open()->linear(kDown, 128, 256, "hidden_size").error().text(),
              HasSubstr(kDown + ".weight: expected a linear of shape [128, 256] (from "
                                "hidden_size), found bf16 [32768]"));

  auto wide = golden("llama");
  wide.write();
  const std::string path = wide.directory().file("model.safetensors");
  std::string bytes = read_text_file(path, size_t{1} << 24).value();
  const size_t entry = bytes.find('"' + kDown + ".weight\"");
  const size_t dtype = bytes.find("\"BF16\"", entry);
  bytes.replace(dtype, 6, "\"XX16\"");
  write_file_atomically(path, bytes);
  const auto checkpoint = Checkpoint::open(wide.directory().path());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().text();
  EXPECT_THAT(checkpoint->linear(kDown, 128, 256, "x").error().text(),
              HasSubstr(kDown + ".weight: stored as XX16, which nothing here reads; expected a "
                                "linear of shape [128, 256]"));
}

TEST(Checkpoint, FindsAllProblemsInOnePass) {
  auto editor = golden("llama-nvfp4");
  editor.remove(kDown + ".weight_scale_2");
  editor.set_f32("model.layers.0.mlp.up_proj.weight_scale_2", NAN);
  editor.config()["hidden_size"] = "x";
  const auto checkpoint = editor.open();
  ASSERT_TRUE(checkpoint.has_value());
  EXPECT_THAT(errors_of(*checkpoint), HasSubstr(kDown));
  EXPECT_THAT(errors_of(*checkpoint), HasSubstr("model.layers.0.mlp.up_proj.weight_scale_2"));
  EXPECT_THAT(errors_of(*checkpoint), HasSubstr("config.json.hidden_size"));
  EXPECT_THAT(checkpoint->require_servable().error().text(), HasSubstr("2 more problems"));
}

TEST(Checkpoint, IgnoresActivationScalesThatMeanNothing) {
  auto editor = golden("llama-nvfp4");
  editor.set_f32(kDown + ".input_scale", 0.0f);
  const auto checkpoint = editor.open();
  EXPECT_EQ(errors_of(*checkpoint), "");
  EXPECT_THAT(warnings_of(*checkpoint), HasSubstr(kDown + ".input_scale: is not a finite"));
  EXPECT_EQ(checkpoint->linear(kDown, 128, 256, "x")->input_scale, "");

  auto weight_only = golden("llama-nvfp4");
  weight_only.config().at("quantization_config").at("quant_algo") = "W4A16_NVFP4";
  const auto opened = weight_only.open();
  EXPECT_EQ(errors_of(*opened), "");
  EXPECT_EQ(opened->read_linear(*opened->linear(kDown, 128, 256, "x"))->input_scale, std::nullopt);
}

TEST(Checkpoint, RefusesADirectoryAboutWhichNothingCanBeSaid) {
  const test::TempDir dir;
  EXPECT_THAT(Checkpoint::open(dir.file("absent")).error().text(), HasSubstr("no such directory"));
  EXPECT_THAT(Checkpoint::open(dir.path()).error().text(), HasSubstr("no config.json"));
  dir.write("config.json", "{");
  EXPECT_THAT(Checkpoint::open(dir.path()).error().text(), HasSubstr("config.json"));
  dir.write("config.json", "{}");
  dir.write("golden.safetensors", "");
  EXPECT_THAT(Checkpoint::open(dir.path()).error().text(),
              HasSubstr("looked for model.safetensors.index.json"));
  EXPECT_THAT(Checkpoint::open(dir.path()).error().text(), HasSubstr("found golden.safetensors"));
}

}  // namespace
}  // namespace nibble::checkpoint
