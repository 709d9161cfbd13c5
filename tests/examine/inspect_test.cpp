#include "examine/inspect.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_editor.h"
#include "support/data_dir.h"

namespace nibble::examine {
namespace {

using checkpoint::CheckpointEditor;
using checkpoint::Problem;
using ::testing::HasSubstr;

const std::string kDown = "model.layers.1.mlp.down_proj";

std::string errors_of(const Inspection& inspection) {
  std::string text;
  for (const Problem& problem : inspection.problems) {
    if (problem.severity == Problem::Severity::Error) {
      text += problem.error.text() + "\n";
    }
  }
  return text;
}

TEST(Inspect, AddsUpAServableCheckpoint) {
  const auto result = inspect({.directory = test::stored_golden_path("llama-nvfp4")});
  ASSERT_TRUE(result.has_value()) << result.error().text();
  EXPECT_TRUE(result->servable());
  EXPECT_EQ(result->linears.size(), 15u);
  EXPECT_EQ(result->patterns.size(), 8u);  // seven kinds and the head
  EXPECT_EQ(result->linear_weights, 2 * (128 * 128 * 2 + 64 * 128 * 2 + 256 * 128 * 3) + 512 * 128);
  const auto down =
      std::find_if(result->patterns.begin(), result->patterns.end(), [](const LinearPattern& row) {
        return row.pattern == "model.layers.*.mlp.down_proj";
      });
  ASSERT_NE(down, result->patterns.end());
  EXPECT_EQ(down->count, 2);
  EXPECT_TRUE(down->uniform);
  EXPECT_EQ(down->with_input_scale, 2);
  EXPECT_EQ(down->scales.blocks, 2 * 128 * 16);
  EXPECT_EQ(down->scales.max, 448.0f);
  EXPECT_EQ(down->example.mode, "w4a16");
  EXPECT_THAT(down->example.kernel, HasSubstr("nvfp4"));
}

TEST(Inspect, WithoutTheScanNoScaleIsRead) {
  const auto result =
      inspect({.directory = test::stored_golden_path("llama-nvfp4"), .scan_scales = false});
  EXPECT_EQ(result->patterns[1].scales.blocks, 0);
}

TEST(Inspect, FindsProblemsOfHeadersScalesAndMissingTensorsTogether) {
  CheckpointEditor editor(test::stored_golden_path("llama-nvfp4"));
  editor.tensor(kDown + ".weight_scale").bytes[5] = std::byte{0x7F};
  editor.remove("model.layers.0.mlp.up_proj.weight_scale_2");
  editor.remove("model.norm.weight");
  editor.tensor("model.layers.0.input_layernorm.weight").shape = {64, 2};
  editor.write();
  const auto result = inspect({.directory = editor.directory().path()});
  ASSERT_TRUE(result.has_value());
  EXPECT_FALSE(result->servable());
  const std::string errors = errors_of(*result);
  EXPECT_THAT(errors, HasSubstr(kDown + ".weight_scale: block scale [0, 5] is NaN"));
  EXPECT_THAT(errors, HasSubstr("model.layers.0.mlp.up_proj.weight_scale_2: missing"));
  EXPECT_THAT(errors, HasSubstr("model.norm.weight: missing; expected bf16 [128] (from hidden"));
  EXPECT_THAT(errors, HasSubstr("model.layers.0.input_layernorm.weight: expected bf16 [128]"));
  EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 4) << errors;
}

TEST(Inspect, NanScalesOverZeroBlocksAreAWarning) {
  CheckpointEditor editor(test::stored_golden_path("llama-nvfp4"));
  editor.tensor(kDown + ".weight_scale").bytes[0] = std::byte{0x7F};
  auto& codes = editor.tensor(kDown + ".weight").bytes;
  std::fill_n(codes.begin(), 8, std::byte{0});
  editor.write();
  const auto result = inspect({.directory = editor.directory().path()});
  EXPECT_TRUE(result->servable());
  ASSERT_EQ(result->problems.size(), 1u);
  EXPECT_THAT(result->problems[0].error.text(), HasSubstr("read as 0"));
}

TEST(Inspect, AnArchitectureWithoutAModelIsNotServable) {
  CheckpointEditor editor(test::stored_golden_path("llama-nvfp4"));
  editor.config()["architectures"] = boost::json::array{"SomethingElse"};
  editor.write();
  const auto result = inspect({.directory = editor.directory().path()});
  ASSERT_TRUE(result.has_value());
  EXPECT_FALSE(result->servable());
  EXPECT_THAT(errors_of(*result),
              HasSubstr("config.json.architectures: 'SomethingElse' is not supported; known are "
                        "LlamaForCausalLM"));
}

TEST(Inspect, AnErrorOfTheConfigDoesNotHideThoseOfTensors) {
  CheckpointEditor editor(test::stored_golden_path("llama-nvfp4"));
  editor.config()["rope_scaling"] = boost::json::object{{"rope_type", "longrope"}, {"factor", 2}};
  editor.remove("model.norm.weight");
  editor.tensor("model.layers.0.input_layernorm.weight").shape = {64, 2};
  editor.write();
  const auto result = inspect({.directory = editor.directory().path()});
  ASSERT_TRUE(result.has_value());
  EXPECT_FALSE(result->servable());
  const std::string errors = errors_of(*result);
  EXPECT_THAT(errors, HasSubstr("config.json.rope_scaling.rope_type: 'longrope' is not supported"));
  EXPECT_THAT(errors, HasSubstr("model.norm.weight: missing; expected bf16 [128] (from hidden"));
  EXPECT_THAT(errors, HasSubstr("model.layers.0.input_layernorm.weight: expected bf16 [128]"));
  EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 3) << errors;
}

TEST(Inspect, WithoutSizesNoTensorIsJudged) {
  CheckpointEditor editor(test::stored_golden_path("llama-nvfp4"));
  editor.config().erase("hidden_size");
  editor.remove("model.norm.weight");
  editor.write();
  const auto result = inspect({.directory = editor.directory().path()});
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(errors_of(*result), "config.json.hidden_size: required but missing\n");
}

TEST(Inspect, WhatTheLoaderRefusesByTheConfigIsNotServable) {
  CheckpointEditor editor(test::stored_golden_path("llama-nvfp4"));
  editor.config()["hidden_act"] = "gelu";
  editor.write();
  const auto result = inspect({.directory = editor.directory().path()});
  ASSERT_TRUE(result.has_value());
  EXPECT_FALSE(result->servable());
  EXPECT_THAT(errors_of(*result), HasSubstr("config.json: hidden_act: expected silu, found gelu"));
}

TEST(Inspect, NotANumberInANormIsFoundByTheScanOnly) {
  CheckpointEditor editor(test::stored_golden_path("llama-nvfp4"));
  auto& norm = editor.tensor("model.layers.1.input_layernorm.weight");
  norm.bytes[6] = std::byte{0xC0};  // element 3 becomes a bf16 NaN
  norm.bytes[7] = std::byte{0x7F};
  editor.write();
  const auto result = inspect({.directory = editor.directory().path()});
  ASSERT_TRUE(result.has_value());
  EXPECT_FALSE(result->servable());
  EXPECT_THAT(errors_of(*result),
              HasSubstr("model.layers.1.input_layernorm.weight: expected finite values, found NaN "
                        "or infinity at element 3"));
  const auto headers = inspect({.directory = editor.directory().path(), .scan_scales = false});
  ASSERT_TRUE(headers.has_value());
  EXPECT_TRUE(headers->servable());
}

TEST(Inspect, AManifestThatTheFilesDoNotMatchIsNotServable) {
  CheckpointEditor editor(test::stored_golden_path("llama-nvfp4"));
  editor.write();
  editor.directory().write("weights_manifest.json",
                           R"({"format":1,"files":{"model.safetensors":{"size":5}}})");
  const auto result = inspect({.directory = editor.directory().path()});
  ASSERT_TRUE(result.has_value());
  EXPECT_FALSE(result->servable());
  EXPECT_THAT(errors_of(*result), HasSubstr("model.safetensors: "));
  const auto headers = inspect({.directory = editor.directory().path(), .scan_scales = false});
  EXPECT_THAT(errors_of(*headers), HasSubstr("model.safetensors: the manifest says 5 bytes"));
  editor.directory().write("weights_manifest.json", "{");
  const auto broken = inspect({.directory = editor.directory().path(), .scan_scales = false});
  EXPECT_THAT(errors_of(*broken), HasSubstr("weights_manifest.json: not valid JSON"));
}

TEST(Inspect, NotANumberInAHalfPrecisionTensorIsFoundAfterRounding) {
  CheckpointEditor editor(test::stored_golden_path("llama-nvfp4"));
  auto& norm = editor.tensor("model.norm.weight");
  norm.dtype = DType::F16;
  std::fill(norm.bytes.begin(), norm.bytes.end(), std::byte{0x3C});
  editor.write();
  EXPECT_TRUE(inspect({.directory = editor.directory().path()})->servable());
  norm.bytes[4] = std::byte{0x00};  // element 2 becomes infinity
  norm.bytes[5] = std::byte{0x7C};
  editor.write();
  EXPECT_THAT(errors_of(*inspect({.directory = editor.directory().path()})),
              HasSubstr("model.norm.weight: expected finite values, found NaN or infinity at "
                        "element 2"));
}

TEST(ScaleStatistics, CountsEveryKindOfCode) {
  const std::vector<std::byte> codes = {std::byte{0x00},
                                        std::byte{0x01},
                                        std::byte{0x38},
                                        std::byte{0x7E},
                                        std::byte{0x7F},
                                        std::byte{0xFF},
                                        std::byte{0xB8}};
  ScaleStatistics statistics = scale_statistics(codes);
  EXPECT_EQ(statistics.blocks, 7);
  EXPECT_EQ(statistics.zero, 1);
  EXPECT_EQ(statistics.smallest, 1);
  EXPECT_EQ(statistics.largest, 1);
  EXPECT_EQ(statistics.nan, 2);
  EXPECT_EQ(statistics.negative, 1);
  EXPECT_EQ(statistics.min, 0.001953125f);
  EXPECT_EQ(statistics.max, 448.0f);
  ScaleStatistics sum;
  sum.add(scale_statistics(std::span(codes).subspan(2, 1)));
  EXPECT_EQ(sum.min, 1.0f);
  sum.add(statistics);
  EXPECT_EQ(sum.min, 0.001953125f);
  EXPECT_EQ(sum.blocks, 8);
}

TEST(Inspect, PatternsReplaceWholeNumbersOnly) {
  EXPECT_EQ(name_pattern_of("model.layers.13.mlp.experts.7.up_proj"),
            "model.layers.*.mlp.experts.*.up_proj");
  EXPECT_EQ(name_pattern_of("a.w1.2b"), "a.w1.2b");
  EXPECT_EQ(name_pattern_of("lm_head"), "lm_head");
}

}  // namespace
}  // namespace nibble::examine
