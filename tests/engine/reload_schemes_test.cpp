// A -> B -> A for every scheme a checkpoint may store and every mode it may run in: B equals a
// fresh start on B bit for bit, and A comes back. What cannot be loaded into what runs is refused
// by the first difference.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dialects/dialect_harness.h"
#include "engine/engine.h"
#include "support/checkpoint_editor.h"
#include "support/data_dir.h"
#include "support/engine_harness.h"

namespace nibble::engine {
namespace {

using checkpoint::CheckpointEditor;
using checkpoint::Fp8Form;
using testing::HasSubstr;

struct Signature {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<uint32_t>> logprobs;
  bool operator==(const Signature&) const = default;
};

Signature signature(Engine& engine) {
  Signature out;
  for (int32_t length : {1, 17, 40}) {
    std::vector<int32_t> prompt;
    prompt.reserve(static_cast<size_t>(length));
    for (int32_t i = 0; i < length; ++i) {
      prompt.push_back((i * 37 + 11) % 500);
    }
    Request request = test::greedy_request(std::move(prompt), 12);
    request.logprobs.output = true;
    const test::Answer answer = test::generate(engine, std::move(request));
    out.tokens.push_back(answer.tokens);
    out.logprobs.push_back(test::logprob_bits(answer));
  }
  return out;
}

EngineConfig config_of(const std::string& directory, Nvfp4Mode mode) {
  EngineConfig config = test::tiny_config(directory);
  config.nvfp4_mode = mode;
  return config;
}

Signature fresh(const std::string& directory, Nvfp4Mode mode) {
  const auto engine = test::start_engine(config_of(directory, mode));
  return signature(*engine);
}

std::string outcome(Engine& engine, const std::string& directory, bool flush = true) {
  WeightUpdate update;
  update.model_path = directory;
  update.flush_cache = flush;
  const Result<WeightUpdateReport> report = engine.update_weights(update);
  return report ? "" : report.error().text();
}

// Every number that may change without changing the scheme: norms, all kinds of scales, biases,
// and the codes themselves.
void change_values(CheckpointEditor& editor) {
  for (auto& [name, tensor] : editor.tensors()) {
    const bool scale = name.ends_with("weight_scale_2") || name.ends_with("weight_global_scale") ||
                       name.ends_with("input_scale");
    if (scale && tensor.dtype == DType::F32) {
      checkpoint::set_scalar(editor, name, checkpoint::scalar(editor, name) * 0.75f);
    } else if (tensor.dtype == DType::BF16) {  // the sign of some values
      for (size_t i = 1; i < tensor.bytes.size(); i += 14) {
        tensor.bytes[i] ^= std::byte{0x80};
      }
    } else if (name.ends_with(".weight") || name.ends_with(".weight_packed")) {  // codes
      for (size_t i = 0; i < tensor.bytes.size(); i += 3) {
        tensor.bytes[i] ^= std::byte{0x80};
      }
    }
  }
}

void expect_round_trip(const std::string& a, const std::string& b, Nvfp4Mode mode) {
  const Signature of_a = fresh(a, mode);
  const Signature of_b = fresh(b, mode);
  EXPECT_FALSE(of_a == of_b) << "the two must differ for this test to mean anything";
  const auto engine = test::start_engine(config_of(a, mode));
  EXPECT_TRUE(signature(*engine) == of_a);
  for (const bool flush : {true, false}) {
    EXPECT_EQ(outcome(*engine, b, flush), "");
    EXPECT_TRUE(signature(*engine) == of_b);
    EXPECT_EQ(outcome(*engine, a, flush), "");
    EXPECT_TRUE(signature(*engine) == of_a);
  }
}

struct Case {
  const char* name;
  const char* golden;
  Nvfp4Mode mode;
  std::function<void(CheckpointEditor&)> edit;  // of both checkpoints
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

void keep(CheckpointEditor& /*editor*/) {}

void mixed_fp8(CheckpointEditor& editor) {
  checkpoint::set_quantization(editor,
                               R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION",
      "quantized_layers":{"model.layers.0.self_attn.o_proj":{"quant_algo":"FP8"},
      "model.layers.0.mlp.down_proj":{"quant_algo":"MXFP8","group_size":32},
      "model.layers.0.self_attn":{"quant_algo":"NVFP4","group_size":16},
      "model.layers.0.mlp":{"quant_algo":"NVFP4","group_size":16},
      "model.layers.1":{"quant_algo":"NVFP4","group_size":16}}})",
                               "");
  checkpoint::to_fp8(editor, "model.layers.0.self_attn.o_proj", 128, 128, Fp8Form::Tensor);
  checkpoint::to_fp8(editor, "model.layers.0.mlp.down_proj", 128, 256, Fp8Form::Mx);
}

void unequal_parts(CheckpointEditor& editor) {
  for (const char* part : {"self_attn.k_proj", "mlp.up_proj"}) {
    const std::string name = std::string("model.layers.0.") + part + ".weight_scale_2";
    checkpoint::set_scalar(editor, name, checkpoint::scalar(editor, name) * 4.0f);
  }
}

class ReloadSchemes : public testing::TestWithParam<Case> {};

TEST_P(ReloadSchemes, ThereAndBackIsBitwiseAFreshStart) {
  const auto golden = test::any_golden_path(GetParam().golden);
  if (!golden) {
    GTEST_SKIP() << GetParam().golden << " is not in this checkout";
  }
  CheckpointEditor a(*golden);
  GetParam().edit(a);
  a.write();
  CheckpointEditor b(*golden);
  GetParam().edit(b);
  change_values(b);
  b.write();
  expect_round_trip(a.directory().path(), b.directory().path(), GetParam().mode);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    ReloadSchemes,
    testing::Values(
        Case{"Bf16", "llama", Nvfp4Mode::Auto, keep},
        Case{"TiedHead", "smollm2", Nvfp4Mode::Auto, keep},
        Case{"Nvfp4W4a16", "llama-nvfp4", Nvfp4Mode::W4A16, keep},
        Case{"Nvfp4W4a4", "llama-nvfp4", Nvfp4Mode::W4A4, keep},
        Case{"UnequalPartsW4a16", "llama-nvfp4", Nvfp4Mode::W4A16, unequal_parts},
        Case{"UnequalPartsW4a4", "llama-nvfp4", Nvfp4Mode::W4A4, unequal_parts},
        Case{"Awq", "llama-nvfp4-awq", Nvfp4Mode::W4A16, keep},
        Case{"BiasesAndQuantizedHeadW4a16", "qwen2-nvfp4", Nvfp4Mode::W4A16, keep},
        Case{"BiasesAndQuantizedHeadW4a4", "qwen2-nvfp4", Nvfp4Mode::W4A4, keep},
        Case{"HeadNorms", "qwen3-nvfp4", Nvfp4Mode::W4A16, keep},
        Case{"MixedFp8", "llama-nvfp4", Nvfp4Mode::W4A16, mixed_fp8},
        Case{"PartlyWeightOnly", "vendor/llama-modelopt-mlp-weight-only", Nvfp4Mode::Auto, keep},
        Case{"CompressedTensors", "vendor/llama-ct-nvfp4", Nvfp4Mode::W4A16, keep}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(ReloadDialects, ModelOptGoesToCompressedTensorsAndBack) {
  const std::string modelopt = test::stored_golden_path("vendor/llama-modelopt-nvfp4");
  const std::string compressed = test::stored_golden_path("vendor/llama-ct-nvfp4");
  for (const Nvfp4Mode mode : {Nvfp4Mode::W4A16, Nvfp4Mode::W4A4}) {
    expect_round_trip(modelopt, compressed, mode);
  }
}

TEST(ReloadDialects, WhatCannotBeLoadedIntoWhatRunsIsRefusedByTheFirstDifference) {
  const std::string nvfp4 = test::stored_golden_path("llama-nvfp4");
  const auto engine = test::start_engine(config_of(nvfp4, Nvfp4Mode::W4A16));
  const Signature before = signature(*engine);
  EXPECT_THAT(outcome(*engine, test::stored_golden_path("llama")),
              testing::AllOf(HasSubstr("model.layers.0"), HasSubstr("expected a linear stored")));
  EXPECT_THAT(outcome(*engine, test::stored_golden_path("qwen3-nvfp4")),
              HasSubstr("architectures"));
  EXPECT_THAT(outcome(*engine, test::stored_golden_path("smollm2")), HasSubstr("hidden_size"));
  EXPECT_THAT(outcome(*engine, test::stored_golden_path("vendor/llama-modelopt-nvfp4")),
              HasSubstr("rms_norm_eps"));
  EXPECT_THAT(outcome(*engine, test::stored_golden_path("llama-nvfp4-awq")),
              HasSubstr("pre_quant_scale"));
  CheckpointEditor mixed(nvfp4);
  mixed_fp8(mixed);
  mixed.write();
  EXPECT_THAT(outcome(*engine, mixed.directory().path()), HasSubstr("model.layers.0"));
  EXPECT_TRUE(signature(*engine) == before);
  EXPECT_EQ(engine->weights().num_updates, 0);
}

}  // namespace
}  // namespace nibble::engine
