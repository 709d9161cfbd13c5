// The FP8 forms that appear beside NVFP4 in mixed checkpoints and alone in their sources.
#include <cmath>
#include <cstring>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/number_formats.h"
#include "dialects/dialect_harness.h"

namespace nibble::checkpoint {
namespace {

using ::testing::HasSubstr;

struct Case {
  Fp8Form form;
  const char* config;
  LinearInfo::Format format;
  LinearInfo::Stored stored;
};

const char* const kTensor =
    R"({"quant_method":"modelopt","quant_algo":"FP8","ignore":["lm_head"]})";
const char* const kRow =
    R"({"quant_method":"modelopt","quant_algo":"FP8_PER_CHANNEL_PER_TOKEN","ignore":["lm_head"]})";
const char* const kBlock = R"({"quant_method":"fp8","weight_block_size":[128,128],
    "activation_scheme":"dynamic","modules_to_not_convert":["lm_head"]})";
const char* const kMx = R"({"quant_method":"modelopt","quant_algo":"MXFP8","ignore":["lm_head"]})";

TEST(Fp8Dialect, EveryFormDecodesExactly) {
  using Format = LinearInfo::Format;
  using Stored = LinearInfo::Stored;
  const Case cases[] = {
      {Fp8Form::Tensor, kTensor, Format::Fp8, Stored::AsFormat},
      {Fp8Form::Row, kRow, Format::Bf16, Stored::Fp8PerChannel},
      {Fp8Form::RowFlat, kRow, Format::Bf16, Stored::Fp8PerChannel},
      {Fp8Form::Block, kBlock, Format::Bf16, Stored::Fp8Block},
      {Fp8Form::BlockBf16, kBlock, Format::Bf16, Stored::Fp8Block},
      {Fp8Form::Mx, kMx, Format::Bf16, Stored::Mxfp8},
  };
  for (const Case& one : cases) {
    CheckpointEditor editor = golden("llama");
    set_quantization(editor, one.config, "");
    Weights expected;
    for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
      for (const std::string& part : kParts) {
        const Shape shape = editor.tensor(layer + part + ".weight").shape;
        expected[layer + part] = to_fp8(editor, layer + part, shape[0], shape[1], one.form);
      }
    }
    const Weights found = expect_servable(editor);
    for (const auto& [module, values] : expected) {
      EXPECT_TRUE(found.at(module) == values) << module << " of " << one.config;
    }
    EXPECT_EQ(warnings_of(editor), "") << one.config;
    const auto checkpoint = Checkpoint::open(editor.directory().path());
    const auto info = checkpoint->linear(kDown, 128, 256, "");
    EXPECT_EQ(info->format, one.format);
    EXPECT_EQ(info->stored, one.stored);
    const auto data = checkpoint->read_linear(*info);
    ASSERT_TRUE(data.has_value());
    if (one.format == Format::Bf16) {  // powers of two as scales: the bf16 weights are exact
      ASSERT_EQ(data->weight.size(), size_t{128 * 256 * 2});
      for (size_t i : {size_t{0}, size_t{5}, size_t{128 * 256 - 1}}) {
        uint16_t bits = 0;
        std::memcpy(&bits, data->weight.data() + 2 * i, 2);
        EXPECT_EQ(bf16_to_float(bits), expected.at(kDown)[i]);
      }
    } else {
      EXPECT_EQ(data->weight_dtype, DType::E4M3);
    }
  }
}

TEST(Fp8Dialect, StaticActivationScalesAreKept) {
  CheckpointEditor editor = golden("llama");
  set_quantization(editor,
                   R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION",
                       "quantized_layers":{"model.layers.1.mlp.down_proj":{"quant_algo":"FP8"}}})",
                   "");
  to_fp8(editor, kDown, 128, 256, Fp8Form::Tensor);
  editor.set_f32(kDown + ".input_scale", 0.125f);
  EXPECT_EQ(errors_of(editor), "");
  const auto checkpoint = Checkpoint::open(editor.directory().path());
  const auto data = checkpoint->read_linear(*checkpoint->linear(kDown, 128, 256, ""));
  EXPECT_EQ(data->input_scale, 0.125f);
}

TEST(Fp8Dialect, DamageIsNamed) {
  const auto damaged = [](auto apply) {
    CheckpointEditor editor = golden("llama");
    set_quantization(editor,
                     R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION",
                       "quantized_layers":{"model.layers.1.mlp.down_proj":{"quant_algo":"FP8"}}})",
                     "");
    to_fp8(editor, kDown, 128, 256, Fp8Form::Tensor);
    apply(editor);
    return errors_of(editor);
  };
  EXPECT_EQ(damaged([](CheckpointEditor&) {}), "");
  EXPECT_EQ(
      damaged([](CheckpointEditor& e) { e.remove(kDown + ".weight_scale"); }),
      kDown + ".weight_scale: missing; " + kDown + ".weight is stored as f8_e4m3 and needs it\n");
  EXPECT_THAT(
      damaged([](CheckpointEditor& e) {
        e.tensor(kDown + ".weight_scale") = {DType::F32, {3}, std::vector<std::byte>(12)};
      }),
      HasSubstr(kDown + ".weight_scale: expected one f32 number, f32 [128, 1] or f32 [1, 2]"));
  EXPECT_THAT(damaged([](CheckpointEditor& e) { e.set_f32(kDown + ".weight_scale", -1.0f); }),
              HasSubstr(kDown + ".weight_scale: expected a finite positive scale, found -1"));
  CheckpointEditor nan = golden("llama");
  set_quantization(nan, kRow, "");
  to_fp8(nan, kDown, 128, 256, Fp8Form::Row);
  nan.tensor(kDown + ".weight").bytes[300] = std::byte{0xFF};
  nan.write();
  const auto checkpoint = Checkpoint::open(nan.directory().path());
  const LinearInfo* info = nullptr;
  for (const LinearInfo& linear : checkpoint->linears()) {
    info = linear.module == kDown ? &linear : info;
  }
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(checkpoint->read_linear(*info).error().text(), kDown + ".weight: value [1, 44] is NaN");
}

TEST(Fp8Dialect, DamagedValuesOfEveryFormAreFoundByInspecting) {
  struct Form {
    Fp8Form form;
    const char* config;
    const char* scale;
  };
  const Form forms[] = {{Fp8Form::Tensor, kTensor, ".weight_scale"},
                        {Fp8Form::Row, kRow, ".weight_scale"},
                        {Fp8Form::Block, kBlock, ".weight_scale_inv"},
                        {Fp8Form::Mx, kMx, ".weight_scale"}};
  for (const Form& form : forms) {
    CheckpointEditor editor = golden("llama");
    set_quantization(editor, form.config, "");
    for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
      for (const std::string& part : kParts) {
        const Shape shape = editor.tensor(layer + part + ".weight").shape;
        to_fp8(editor, layer + part, shape[0], shape[1], form.form);
      }
    }
    ASSERT_EQ(errors_of(editor), "") << form.config;
    auto& weight = editor.tensor(kDown + ".weight").bytes;
    const std::byte kept = std::exchange(weight[300], std::byte{0x7F});
    EXPECT_EQ(errors_of(editor), kDown + ".weight: value [1, 44] is NaN\n") << form.config;
    weight[300] = kept;
    const std::string scale = kDown + form.scale;
    if (form.form == Fp8Form::Mx) {
      editor.tensor(scale).bytes[3] = std::byte{0xFF};
      EXPECT_EQ(errors_of(editor),
                scale + ": expected finite positive scales, found NaN at element 3\n");
      continue;
    }
    for (const float bad : {0.0f, -1.0f, NAN, INFINITY}) {
      std::memcpy(editor.tensor(scale).bytes.data(), &bad, sizeof bad);
      EXPECT_THAT(errors_of(editor),
                  testing::AllOf(HasSubstr(scale + ": expected "), HasSubstr("finite positive")))
          << form.config << bad;
    }
  }
}

}  // namespace
}  // namespace nibble::checkpoint
