#include "checkpoint/stacked_experts.h"

#include <cstring>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_editor.h"
#include "support/data_dir.h"

namespace nibble::checkpoint {
namespace {

using testing::HasSubstr;

constexpr int64_t kExperts = 8;

struct Layout {
  bool transposed = false;
  bool fused = true;      // gate_up_proj, else gate_proj and up_proj
  int64_t scales_of = 1;  // global scales an expert, 0: one for all
};

// Moves the tensors `suffix` of every expert's matrix into one stack of [experts, rows, columns].
CheckpointEditor::Stored take_stack(CheckpointEditor& editor,
                                    const std::string& prefix,
                                    const std::vector<std::string>& parts,
                                    const std::string& suffix,
                                    bool transposed) {
  CheckpointEditor::Stored stack;
  for (int64_t e = 0; e < kExperts; ++e) {
    std::vector<std::byte> slice;
    int64_t rows = 0;
    int64_t columns = 0;
    for (const std::string& part : parts) {
      const std::string name = prefix + std::to_string(e) + "." + part + suffix;
      const CheckpointEditor::Stored& stored = editor.tensor(name);
      rows += stored.shape[0];
      columns = stored.shape[1];
      stack.dtype = stored.dtype;
      slice.insert(slice.end(), stored.bytes.begin(), stored.bytes.end());
      editor.remove(name);
    }
    const int64_t size = size_of(stack.dtype);
    if (transposed) {
      const std::vector<std::byte> straight = slice;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          std::memcpy(slice.data() + (c * rows + r) * size,
                      straight.data() + (r * columns + c) * size,
                      static_cast<size_t>(size));
        }
      }
    }
    stack.shape = transposed ? Shape{kExperts, columns, rows} : Shape{kExperts, rows, columns};
    stack.bytes.insert(stack.bytes.end(), slice.begin(), slice.end());
  }
  return stack;
}

CheckpointEditor::Stored take_numbers(CheckpointEditor& editor,
                                      const std::string& prefix,
                                      const std::vector<std::string>& parts,
                                      const std::string& suffix,
                                      int64_t an_expert) {
  CheckpointEditor::Stored out{DType::F32, {}, {}};
  for (int64_t e = 0; e < kExperts; ++e) {
    for (size_t p = 0; p < parts.size(); ++p) {
      const std::string name = prefix + std::to_string(e) + "." + parts[p] + suffix;
      const std::vector<std::byte> bytes = editor.tensor(name).bytes;
      editor.remove(name);
      const bool wanted = static_cast<int64_t>(p) < an_expert || (e == 0 && p == 0);
      if (wanted) {
        out.bytes.insert(out.bytes.end(), bytes.begin(), bytes.end());
      }
    }
  }
  if (an_expert > 0) {
    out.shape = an_expert == 1 ? Shape{kExperts} : Shape{kExperts, an_expert};
  }
  return out;
}

void stack_layer(CheckpointEditor& editor, int layer, const Layout& layout) {
  const std::string module = "model.layers." + std::to_string(layer) + ".mlp.experts.";
  std::vector<std::vector<std::string>> stacks{{"gate_proj", "up_proj"}, {"down_proj"}};
  if (!layout.fused) {
    stacks = {{"gate_proj"}, {"up_proj"}, {"down_proj"}};
  }
  for (const std::vector<std::string>& parts : stacks) {
    const std::string name = module + (parts.size() == 2 ? "gate_up_proj" : parts[0]);
    editor.tensors()[name + "_weight_scale"] =
        take_stack(editor, module, parts, ".weight_scale", layout.transposed);
    editor.tensors()[name] = take_stack(editor, module, parts, ".weight", layout.transposed);
    const int64_t numbers = std::min(layout.scales_of, static_cast<int64_t>(parts.size()));
    editor.tensors()[name + "_weight_scale_2"] =
        take_numbers(editor, module, parts, ".weight_scale_2", numbers);
    editor.tensors()[name + "_input_scale"] =
        take_numbers(editor, module, parts, ".input_scale", numbers);
  }
}

CheckpointEditor golden() { return CheckpointEditor(test::stored_golden_path("qwen3_moe-nvfp4")); }

// The linears of the layer's experts in both checkpoints, compared by what the packers get.
void expect_same_experts(const Checkpoint& apart, const Checkpoint& stacked) {
  int compared = 0;
  for (const LinearInfo& info : apart.linears()) {
    if (info.module.find("layers.0.mlp.experts.") == std::string::npos) {
      continue;
    }
    const auto other = stacked.linear(info.module, info.n, info.k, "");
    ASSERT_TRUE(other.has_value()) << other.error().text();
    const LinearData a = apart.read_linear(info).value();
    const LinearData b = stacked.read_linear(*other).value();
    EXPECT_EQ(a.weight, b.weight) << info.module;
    EXPECT_EQ(a.weight_scale, b.weight_scale) << info.module;
    EXPECT_EQ(a.weight_scale_2, b.weight_scale_2) << info.module;
    EXPECT_EQ(a.input_scale, b.input_scale) << info.module;
    EXPECT_EQ(apart.read_weight(info).value(), stacked.read_weight(*other).value());
    ++compared;
  }
  EXPECT_EQ(compared, 3 * kExperts);
}

TEST(StackedExperts, EveryLayoutReadsAsTheMatricesThatWereStacked) {
  auto plain = golden();
  const Checkpoint apart = plain.open().value();
  for (const bool transposed : {false, true}) {
    for (const bool fused : {false, true}) {
      for (const int64_t scales_of : {1, 2}) {
        SCOPED_TRACE(testing::Message() << transposed << fused << scales_of);
        auto editor = golden();
        stack_layer(editor, 0, {transposed, fused, scales_of});
        const Checkpoint stacked = editor.open().value();
        EXPECT_TRUE(stacked.require_servable().has_value())
            << problem_texts(stacked, Problem::Severity::Error);
        EXPECT_EQ(problem_texts(stacked, Problem::Severity::Warning).find("named like a scale"),
                  std::string::npos);
        expect_same_experts(apart, stacked);
      }
    }
  }
}

TEST(StackedExperts, OneGlobalScaleForAllIsSharedByAll) {
  auto editor = golden();
  stack_layer(editor, 0, {.scales_of = 0});
  const Checkpoint stacked = editor.open().value();
  const float first =
      stacked.linear("model.layers.0.mlp.experts.0.gate_proj", 64, 64, "")->global_scale;
  for (int64_t e = 1; e < kExperts; ++e) {
    const std::string module = "model.layers.0.mlp.experts." + std::to_string(e) + ".up_proj";
    EXPECT_EQ(stacked.linear(module, 64, 64, "")->global_scale, first);
  }
}

std::string errors_after(const std::function<void(CheckpointEditor&)>& edit) {
  auto editor = golden();
  stack_layer(editor, 0, {});
  edit(editor);
  return problem_texts(editor.open().value(), Problem::Severity::Error);
}

TEST(StackedExperts, WhatDoesNotFitIsNamed) {
  const std::string name = "model.layers.0.mlp.experts.gate_up_proj";
  EXPECT_EQ(errors_after([](CheckpointEditor&) {}), "");
  EXPECT_THAT(errors_after([&](CheckpointEditor& editor) {
                editor.tensor(name).shape = {kExperts, 64, 64};
              }),
              HasSubstr(name + ": expected [8, 128, 32] (from num_experts x 2 * "
                               "moe_intermediate_size x hidden_size) or [8, 32, 128], found u8 "
                               "[8, 64, 64]"));
  EXPECT_THAT(
      errors_after([&](CheckpointEditor& editor) { editor.remove(name + "_weight_scale_2"); }),
      HasSubstr(name + "_weight_scale_2: missing"));
  EXPECT_THAT(errors_after([&](CheckpointEditor& editor) {
                CheckpointEditor::Stored& scale = editor.tensor(name + "_weight_scale_2");
                scale.shape = {2};
                scale.bytes.resize(8);
              }),
              HasSubstr("one for each of 8 experts, found f32 [2]"));
  EXPECT_THAT(errors_after([&](CheckpointEditor& editor) {
                CheckpointEditor::Stored& scale = editor.tensor(name + "_weight_scale");
                scale.shape = {kExperts, 4, 128};
              }),
              HasSubstr("expected both [n, k] or both [k, n]"));
  EXPECT_THAT(errors_after([&](CheckpointEditor& editor) {
                auto other = golden();
                const std::string weight = "model.layers.0.mlp.experts.3.up_proj.weight";
                for (const char* suffix : {"", "_scale", "_scale_2"}) {
                  editor.tensors()[weight + suffix] = other.tensor(weight + suffix);
                }
              }),
              HasSubstr("experts.3.up_proj.weight: stored twice: beside " + name));
}

TEST(StackedExperts, AConfigWithoutExpertsHasNone) {
  ModelConfig config;
  TensorTable tensors;
  tensors["a.experts.gate_up_proj"] = {0, TensorInfo{DType::BF16, {2, 4, 4}, 0, 64, ""}};
  EXPECT_TRUE(find_stacked_experts(tensors, config).linears.empty());
  config.moe.num_experts = 2;
  config.moe.moe_intermediate_size = 2;
  config.hidden_size = 4;
  EXPECT_EQ(find_stacked_experts(tensors, config).linears.size(), 4u);
  EXPECT_TRUE(find_stacked_experts(tensors, config).errors.empty());
}

}  // namespace
}  // namespace nibble::checkpoint
