// compressed-tensors checkpoints: other names, divisors instead of multipliers, mixed formats.
#include <algorithm>
#include <cmath>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dialects/dialect_harness.h"
#include "support/data_dir.h"
#include "support/present.h"

namespace nibble::checkpoint {
namespace {

using ::testing::HasSubstr;

const char* const kConfig = R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized",
    "config_groups":{"group_0":{"targets":["Linear"],"format":"nvfp4-pack-quantized",
    "input_activations":{"actorder":null,"dynamic":"local","num_bits":4,"type":"float",
    "strategy":"tensor_group","group_size":16},"weights":{"actorder":null,"block_structure":null,
    "dynamic":false,"group_size":16,"num_bits":4,"observer":"memoryless_minmax",
    "observer_kwargs":{},"strategy":"tensor_group","symmetric":true,"type":"float",
    "scale_dtype":"torch.float8_e4m3fn","zp_dtype":null}}},"ignore":["lm_head"]})";

// The golden model with global scales that have exact inverses.
CheckpointEditor powers_of_two() {
  CheckpointEditor editor = golden("llama-nvfp4");
  for (auto& [name, stored] : editor.tensors()) {
    if (name.ends_with(".weight_scale_2") || name.ends_with(".input_scale")) {
      set_scalar(editor, name, std::exp2(std::round(std::log2(scalar(editor, name)))));
    }
  }
  return editor;
}

TEST(CompressedTensorsDialect, MeansTheSameAsModelOptWithInverseScales) {
  CheckpointEditor modelopt = powers_of_two();
  const Weights expected = expect_servable(modelopt);
  CheckpointEditor editor = powers_of_two();
  set_quantization(editor, kConfig, "");
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    for (const std::string& part : kParts) {
      to_compressed_tensors(editor, layer + part);
    }
  }
  EXPECT_TRUE(expect_servable(editor) == expected);
  const auto a = Checkpoint::open(modelopt.directory().path());
  const auto b = Checkpoint::open(editor.directory().path());
  EXPECT_EQ(test::present(a->read_linear(*a->linear(kDown, 128, 256, ""))->input_scale),
            test::present(b->read_linear(*b->linear(kDown, 128, 256, ""))->input_scale));
}

TEST(CompressedTensorsDialect, TheDialectIsDecidedLinearByLinear) {
  CheckpointEditor modelopt = powers_of_two();
  const Weights expected = expect_servable(modelopt);
  CheckpointEditor editor = powers_of_two();
  for (const std::string& part : kParts) {
    to_compressed_tensors(editor, "model.layers.1." + part);
  }
  EXPECT_TRUE(expect_servable(editor) == expected);
}

TEST(CompressedTensorsDialect, OneCheckpointInBothVendorsFormsDecodesToTheSameNumbersNearly) {
  const auto ct = Checkpoint::open(test::stored_golden_path("vendor/llama-ct-nvfp4"));
  const auto modelopt = Checkpoint::open(test::stored_golden_path("vendor/llama-modelopt-nvfp4"));
  const auto a = ct->read_weight(*ct->linear(kDown, 128, 256, ""));
  const auto b = modelopt->read_weight(*modelopt->linear(kDown, 128, 256, ""));
  double difference = 0;
  double total = 0;
  for (size_t i = 0; i < a->size(); ++i) {
    difference += std::pow(static_cast<double>((*a)[i]) - (*b)[i], 2);
    total += std::pow(static_cast<double>((*b)[i]), 2);
  }
  EXPECT_LT(std::sqrt(difference / total), 0.05);  // an inverted scale would be off by 1e6
}

TEST(CompressedTensorsDialect, WeightOnlyAndUnknownKeysAreFine) {
  const std::string text = kConfig;
  const size_t begin = text.find("\"input_activations\":") + 20;
  const size_t end = text.find("},\"weights\"") + 1;
  CheckpointEditor editor = golden("vendor/llama-ct-nvfp4");
  set_quantization(editor, std::string(text).replace(begin, end - begin, "null"), "");
  remove_ending_with(editor, ".input_global_scale");
  EXPECT_EQ(errors_of(editor), "");
  EXPECT_EQ(warnings_of(editor), "");
}

const char* const kMixed = R"({"quant_method":"compressed-tensors","format":"mixed-precision",
    "config_groups":{"group_0":{"format":"float-quantized","weights":{"num_bits":8,"type":"float",
    "strategy":"channel"},"input_activations":{"num_bits":8,"dynamic":true},
    "targets":["re:.*layers\\.1\\.mlp\\.(gate|up|down)_proj$"]},
    "group_1":{"format":"nvfp4-pack-quantized","weights":{"num_bits":4,"type":"float",
    "strategy":"tensor_group","group_size":16},"input_activations":null,
    "targets":["re:.*mlp\\.(gate|up|down)_proj$","re:.*self_attn.*"]}},"ignore":["lm_head"]})";

TEST(CompressedTensorsDialect, TheFirstMatchingGroupWinsAndBothScaleShapesWork) {
  CheckpointEditor plain = powers_of_two();
  for (Fp8Form form : {Fp8Form::Row, Fp8Form::RowFlat}) {
    CheckpointEditor editor = powers_of_two();
    Weights expected = expect_servable(plain);
    set_quantization(editor, kMixed, "");
    for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
      for (const std::string& part : kParts) {
        const std::string module = layer + part;
        if (module.starts_with("model.layers.1.mlp.")) {
          const bool down = part == "mlp.down_proj";
          expected[module] = to_fp8(editor, module, down ? 128 : 256, down ? 256 : 128, form);
        } else {
          to_compressed_tensors(editor, module);
        }
      }
    }
    EXPECT_TRUE(expect_servable(editor) == expected);
    EXPECT_EQ(warnings_of(editor), "");
  }
}

TEST(CompressedTensorsDialect, AStoredFormThatContradictsItsGroupIsNamed) {
  CheckpointEditor editor = powers_of_two();
  set_quantization(editor, kMixed, "");
  EXPECT_THAT(
      errors_of(editor),
      HasSubstr(kDown + ".weight: stored as NVFP4, but config.json.quantization_config says "
                        "FP8_PER_CHANNEL_PER_TOKEN"));
}

TEST(CompressedTensorsDialect, DamageIsNamed) {
  CheckpointEditor missing = golden("vendor/llama-ct-nvfp4");
  missing.remove(kDown + ".weight_global_scale");
  EXPECT_THAT(errors_of(missing), HasSubstr(kDown + ".weight_global_scale: missing"));

  CheckpointEditor twice = golden("vendor/llama-ct-nvfp4");
  twice.tensors()[kDown + ".weight"] = {
      DType::BF16, {128, 256}, std::vector<std::byte>(128 * 256 * 2)};
  EXPECT_THAT(errors_of(twice), HasSubstr(kDown + ".weight_packed: stored twice: beside"));

  CheckpointEditor multiplier = golden("vendor/llama-ct-nvfp4");
  set_scalar(multiplier, kDown + ".weight_global_scale", 0.0003f);
  EXPECT_THAT(errors_of(multiplier),
              HasSubstr(kDown + ".weight_global_scale: found 3e-04, expected a divisor"));

  CheckpointEditor tiny = golden("vendor/llama-ct-nvfp4");
  set_scalar(tiny, kDown + ".weight_global_scale", 3e38f);
  EXPECT_THAT(errors_of(tiny),
              HasSubstr(kDown + ".weight_global_scale: found 3e+38, expected a divisor (about 2688 "
                                "/ amax); with this one all weights are next to zero"));

  CheckpointEditor mxfp4 = golden("vendor/llama-ct-nvfp4");
  mxfp4.remove(kDown + ".weight_global_scale");
  mxfp4.tensor(kDown + ".weight_scale") = {DType::U8, {128, 8}, std::vector<std::byte>(1024)};
  EXPECT_THAT(errors_of(mxfp4), HasSubstr(kDown + ".weight_packed: stored as MXFP4"));
}

TEST(CompressedTensorsDialect, OffsetsAndOrdersThatChangeNothingAreFine) {
  CheckpointEditor editor = golden("vendor/llama-ct-nvfp4");
  const Weights expected = expect_servable(editor);
  editor.tensors()[kDown + ".weight_zero_point"] = {
      DType::I8, {128, 16}, std::vector<std::byte>(128 * 16)};
  std::vector<std::byte> order(256 * 4);
  for (int32_t column = 0; column < 256; ++column) {
    const int32_t group = column / 16;
    std::memcpy(order.data() + 4 * column, &group, 4);
  }
  editor.tensors()[kDown + ".weight_g_idx"] = {DType::I32, {256}, order};
  EXPECT_TRUE(expect_servable(editor) == expected);
  std::fill(order.begin(), order.end(), std::byte{0xFF});  // -1: unset
  editor.tensors()[kDown + ".weight_g_idx"] = {DType::I32, {256}, order};
  EXPECT_TRUE(expect_servable(editor) == expected);
  order[0] = std::byte{3};
  editor.tensors()[kDown + ".weight_g_idx"] = {DType::I32, {256}, order};
  EXPECT_THAT(errors_of(editor), HasSubstr(kDown + ".weight_g_idx: gives columns to groups"));
}

TEST(CompressedTensorsDialect, WeightsThatAreNotSymmetricAreRefused) {
  CheckpointEditor editor = golden("vendor/llama-ct-nvfp4");
  std::string text = kConfig;
  const std::string key = R"("symmetric":true)";
  text.replace(text.find(key), key.size(), R"("symmetric":false)");
  set_quantization(editor, text, "");
  EXPECT_THAT(errors_of(editor),
              HasSubstr("config_groups.group_0.weights.symmetric: is false; weights with zero "
                        "points are not supported"));
}

TEST(CompressedTensorsDialect, AFormatThatLooksAlikeIsRefusedByName) {
  CheckpointEditor editor = golden("vendor/llama-ct-nvfp4");
  std::string text = kConfig;
  for (size_t at = 0; (at = text.find("nvfp4-pack-quantized", at)) != std::string::npos;) {
    text.replace(at, 20, "mixfp4-pack-quantized");
    at += 21;
  }
  set_quantization(editor, text, "");
  EXPECT_THAT(errors_of(editor), HasSubstr("'mixfp4-pack-quantized'"));
}

}  // namespace
}  // namespace nibble::checkpoint
