#include "dialects/dialect_harness.h"

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "base/number_formats.h"
#include "examine/inspect.h"
#include "support/data_dir.h"

namespace nibble::checkpoint {

namespace json = boost::json;

namespace {

std::string without_path(std::string text, const std::string& path) {
  for (size_t at = 0; (at = text.find(path, at)) != std::string::npos;) {
    text.replace(at, path.size(), "DIR");
  }
  return text;
}

std::vector<std::byte> float_bytes(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(size_of(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::F32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    } else {
      const uint16_t bits = float_to_bf16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
  }
  return bytes;
}

void drop_linear(CheckpointEditor& editor, const std::string& module) {
  for (const char* suffix : {".weight", ".weight_scale", ".weight_scale_2", ".input_scale"}) {
    editor.tensors().erase(module + suffix);
  }
}

}  // namespace

CheckpointEditor golden(const std::string& name) {
  return CheckpointEditor(test::stored_golden_path(name));
}

json::value json_of(const std::string& text) { return json::parse(text); }

void set_quantization(CheckpointEditor& editor, const std::string& block, const std::string& side) {
  editor.config().erase("quantization_config");
  if (!block.empty()) {
    editor.config()["quantization_config"] = json::parse(block);
  }
  editor.side() = side.empty() ? json::value() : json::parse(side);
}

std::vector<float> to_bf16(CheckpointEditor& editor,
                           const std::string& module,
                           int64_t n,
                           int64_t k) {
  std::vector<float> values(static_cast<size_t>(n * k));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(static_cast<int>(i * 37 % 64) - 32) / 512.0f;  // exact in bf16
  }
  drop_linear(editor, module);
  editor.tensors()[module + ".weight"] = {DType::BF16, {n, k}, float_bytes(values, DType::BF16)};
  return values;
}

std::vector<float> to_fp8(
    CheckpointEditor& editor, const std::string& module, int64_t n, int64_t k, Fp8Form form) {
  drop_linear(editor, module);
  std::vector<std::byte> codes(static_cast<size_t>(n * k));
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<std::byte>((i * 29 % 0x60) | (i % 3 == 0 ? 0x80 : 0));
  }
  const bool blocks = form == Fp8Form::Block || form == Fp8Form::BlockBf16;
  const int64_t row_step = form == Fp8Form::Tensor ? n : blocks ? 128 : 1;
  const int64_t column_step = blocks ? 128 : form == Fp8Form::Mx ? 32 : k;
  const int64_t rows = (n + row_step - 1) / row_step;
  const int64_t columns = (k + column_step - 1) / column_step;
  std::vector<float> scales(static_cast<size_t>(rows * columns));
  std::vector<std::byte> powers(scales.size());
  for (size_t i = 0; i < scales.size(); ++i) {
    const auto exponent = static_cast<int>(i % 5) - 8;
    scales[i] = std::ldexp(1.0f, exponent);
    powers[i] = static_cast<std::byte>(exponent + 127);
  }
  std::vector<float> values(codes.size());
  for (int64_t i = 0; i < n * k; ++i) {
    const auto scale = static_cast<size_t>(i / k / row_step * columns + i % k / column_step);
    values[static_cast<size_t>(i)] =
        e4m3_to_float(static_cast<uint8_t>(codes[static_cast<size_t>(i)])) * scales[scale];
  }
  editor.tensors()[module + ".weight"] = {DType::E4M3, {n, k}, std::move(codes)};
  Shape shape;
  switch (form) {
    case Fp8Form::Tensor:
      break;
    case Fp8Form::RowFlat:
      shape = {n};
      break;
    default:
      shape = {rows, columns};
  }
  const std::string name = module + (blocks ? ".weight_scale_inv" : ".weight_scale");
  if (form == Fp8Form::Mx) {
    editor.tensors()[name] = {DType::U8, shape, std::move(powers)};
  } else {
    const DType dtype = form == Fp8Form::BlockBf16 ? DType::BF16 : DType::F32;
    editor.tensors()[name] = {dtype, shape, float_bytes(scales, dtype)};
  }
  return values;
}

void set_scalar(CheckpointEditor& editor, const std::string& name, float value) {
  auto& stored = editor.tensor(name);
  stored.bytes = float_bytes({value}, DType::F32);
}

float scalar(CheckpointEditor& editor, const std::string& name) {
  float value = 0;
  std::memcpy(&value, editor.tensor(name).bytes.data(), sizeof value);
  return value;
}

void to_compressed_tensors(CheckpointEditor& editor, const std::string& module) {
  editor.rename(module + ".weight", module + ".weight_packed");
  for (const auto& [from, to] : {std::pair(".weight_scale_2", ".weight_global_scale"),
                                 std::pair(".input_scale", ".input_global_scale")}) {
    if (editor.tensors().contains(module + from)) {
      const float value = scalar(editor, module + from);
      editor.rename(module + from, module + to);
      set_scalar(editor, module + to, 1.0f / value);
      editor.tensor(module + to).shape = {1};
    }
  }
}

void remove_ending_with(CheckpointEditor& editor, const std::string& ending) {
  std::erase_if(editor.tensors(), [&](const auto& entry) { return entry.first.ends_with(ending); });
}

Weights weights_of(const Checkpoint& checkpoint) {
  Weights weights;
  for (const LinearInfo& info : checkpoint.linears()) {
    auto values = checkpoint.read_weight(info);
    EXPECT_TRUE(values.has_value()) << (values ? "" : values.error().text());
    weights[info.module] = values.value_or(std::vector<float>{});
  }
  return weights;
}

Weights expect_servable(CheckpointEditor& editor) {
  EXPECT_EQ(errors_of(editor), "");
  const auto checkpoint = Checkpoint::open(editor.directory().path());
  return checkpoint ? weights_of(*checkpoint) : Weights{};
}

std::string errors_of(const std::string& directory) {
  const auto inspection = examine::inspect({.directory = directory});
  if (!inspection) {
    return without_path(inspection.error().text() + "\n", directory);
  }
  std::string text;
  bool has_model = true;  // the dialects are read for architectures that cannot run yet, too
  for (const Problem& problem : inspection->problems) {
    if (problem.error.code == ErrorCode::Unsupported &&
        problem.error.where == "config.json.architectures") {
      has_model = false;
    } else if (problem.severity == Problem::Severity::Error) {
      text += problem.error.text() + "\n";
    }
  }
  EXPECT_EQ(text.empty() && has_model, inspection->servable());
  return without_path(text, directory);
}

std::string errors_of(CheckpointEditor& editor) {
  editor.write();
  return errors_of(editor.directory().path());
}

std::string warnings_of(CheckpointEditor& editor) {
  const auto checkpoint = editor.open();
  return checkpoint ? problem_texts(*checkpoint, Problem::Severity::Warning)
                    : checkpoint.error().text();
}

}  // namespace nibble::checkpoint
