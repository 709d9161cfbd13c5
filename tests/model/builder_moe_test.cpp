#include <cmath>
#include <cstring>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/number_formats.h"
#include "model/builder.h"
#include "support/checkpoint_editor.h"
#include "support/data_dir.h"
#include "support/forward_harness.h"
#include "tensor/device_api.h"

namespace nibble::model {
namespace {

using checkpoint::Checkpoint;
using checkpoint::CheckpointEditor;
using testing::HasSubstr;

CheckpointEditor golden(const char* name = "qwen3_moe-nvfp4") {
  return CheckpointEditor(test::stored_golden_path(name));
}

std::string outcome(const std::function<void(CheckpointEditor&)>& edit,
                    Nvfp4Mode mode = Nvfp4Mode::W4A16) {
  auto editor = golden();
  edit(editor);
  editor.write();
  const auto harness = test::ForwardHarness::load(editor.directory().path(), {.mode = mode});
  return harness ? "loaded" : harness.error().text();
}

// One MoE block of a checkpoint by itself: built, loaded, run on rows of noise.
class Block {
 public:
  Block(CheckpointEditor& editor, const MoeTraits& traits, Nvfp4Mode mode = Nvfp4Mode::W4A16)
      : stream_(Device{}, 2), checkpoint_(editor.open().value()), builder_(checkpoint_, [&] {
          ModelOptions options;
          options.isa = test::best_isa();
          options.nvfp4_mode = mode;
          return options;
        }()) {
    block_ = builder_.moe("model.layers.0", traits);
    table_ = builder_.layer_table();
    error_ = builder_.finish() ? "" : builder_.finish().error().text();
    if (error_.empty()) {
      store_ = builder_.take_store();
      EXPECT_TRUE(store_->seal(stream_.get()).has_value());
      const auto loaded = store_->load(checkpoint_, stream_.get(), {});
      error_ = loaded ? "" : loaded.error().text();
    }
  }
  const std::string& error() const { return error_; }
  std::string table() const { return testing::PrintToString(table_); }
  ParameterStore& store() { return *store_; }
  Stream stream() const { return stream_.get(); }

  // y of [tokens, 64] rows.
  std::vector<float> run(const std::function<void(Context&, const Tensor&, const Tensor&)>& body,
                         int64_t tokens = 5) const {
    std::vector<uint16_t> x(static_cast<size_t>(tokens * 64));
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = float_to_bf16(std::sin(static_cast<float>(i * i % 1009)));
    }
    std::vector<uint16_t> y(x.size());
    const Tensor x_view(x.data(), DType::BF16, {tokens, 64}, Device{});
    const Tensor y_view(y.data(), DType::BF16, {tokens, 64}, Device{});
    Arena measure(Device{});
    Context measuring{measure, stream_.get(), small_ops(Device::Kind::Cpu, test::best_isa())};
    body(measuring, x_view, y_view);
    std::vector<std::byte> scratch(measure.peak_bytes() + 256);
    Arena arena(scratch.data(), scratch.size(), Device{});
    Context context{arena, stream_.get(), small_ops(Device::Kind::Cpu, test::best_isa())};
    body(context, x_view, y_view);
    std::vector<float> out(y.size());
    std::transform(y.begin(), y.end(), out.begin(), bf16_to_float);
    return out;
  }
  std::vector<float> run() const {
    return run([&](Context& c, const Tensor& x, const Tensor& y) { block_(c, x, y); });
  }
  const MoeBlock& block() const { return block_; }

 private:
  StreamOwner stream_;
  Checkpoint checkpoint_;
  Builder builder_;
  MoeBlock block_;
  std::unique_ptr<ParameterStore> store_;
  std::vector<std::string> table_;
  std::string error_;
};

MoeTraits qwen_traits() {
  MoeTraits traits;
  traits.router = {.experts = 8, .topk = 2, .normalize = true};
  traits.ffn = 64;
  return traits;
}

TEST(BuilderMoe, RefusesARouterThatCannotChooseByTheConfigKey) {
  const auto refusal = [](const RouterDesc& router) {
    auto editor = golden();
    MoeTraits traits = qwen_traits();
    traits.router = router;
    return Block(editor, traits).error();
  };
  EXPECT_EQ(refusal({.experts = 8, .topk = 4, .groups = 4, .topk_groups = 2}), "");
  EXPECT_THAT(refusal({.experts = 8, .topk = 5, .groups = 4, .topk_groups = 2}),
              HasSubstr("config.json: num_experts_per_tok: found 5, but topk_group (2) of n_group "
                        "(4) leave 4 experts"));
  EXPECT_THAT(refusal({.experts = 8, .topk = 9}), HasSubstr("config.json: num_experts_per_tok"));
  EXPECT_THAT(refusal({.experts = 8, .topk = 2, .groups = 3}), HasSubstr("config.json: n_group"));
  EXPECT_THAT(refusal({.experts = 8, .topk = 2, .groups = 2, .topk_groups = 3}),
              HasSubstr("config.json: topk_group"));
}

TEST(BuilderMoe, NamesWhatIsWrongWithAnExpert) {
  EXPECT_EQ(outcome([](CheckpointEditor&) {}), "loaded");
  const std::string expert = "model.layers.2.mlp.experts.5.";
  EXPECT_THAT(outcome([&](CheckpointEditor& editor) {
                for (const char* suffix : {"", "_scale", "_scale_2"}) {
                  editor.remove(expert + "up_proj.weight" + suffix);
                }
                editor.remove(expert + "up_proj.input_scale");
              }),
              HasSubstr(expert + "up_proj.weight: missing; expected a linear of shape [64, 64] "
                                 "(from moe_intermediate_size x hidden_size)"));
  EXPECT_THAT(outcome([&](CheckpointEditor& editor) {
                for (const char* suffix : {"_scale", "_scale_2"}) {
                  editor.remove(expert + "up_proj.weight" + suffix);
                }
                CheckpointEditor::Stored& weight = editor.tensor(expert + "up_proj.weight");
                weight = {DType::BF16, {64, 64}, std::vector<std::byte>(64 * 64 * 2)};
                editor.side() = nullptr;
                editor.config().erase("quantization_config");
              }),
              HasSubstr(expert + "up_proj: stored unlike model.layers.2.mlp.experts.0.gate_proj"));
  EXPECT_THAT(outcome([&](CheckpointEditor& editor) {
                editor.tensors()[expert + "up_proj.bias"] = {
                    DType::BF16, {64}, std::vector<std::byte>(128)};
              }),
              HasSubstr(expert + "up_proj.bias: experts with biases are not supported"));
}

TEST(BuilderMoe, ConfigsThatAskForWindowsAreRefused) {
  EXPECT_THAT(
      outcome([](CheckpointEditor& editor) { editor.config()["use_sliding_window"] = true; }),
      HasSubstr("config.json: use_sliding_window"));
  auto mixtral = golden("vendor/mixtral-modelopt-nvfp4");
  mixtral.config()["sliding_window"] = 64;
  mixtral.write();
  const auto harness = test::ForwardHarness::load(mixtral.directory().path());
  ASSERT_FALSE(harness.has_value());
  EXPECT_THAT(harness.error().text(), HasSubstr("config.json: sliding_window"));
}

TEST(BuilderMoe, ConfigDecidesWhichLayersAreSparse) {
  // Layer 1 is dense by mlp_only_layers; without that its experts are missing.
  EXPECT_THAT(outcome([](CheckpointEditor& editor) {
                editor.config()["mlp_only_layers"] = boost::json::array();
              }),
              HasSubstr("model.layers.1.mlp.gate.weight: missing"));
  EXPECT_THAT(outcome([](CheckpointEditor& editor) {
                editor.config()["decoder_sparse_step"] = 2;
                editor.config()["mlp_only_layers"] = boost::json::array();
              }),
              HasSubstr("model.layers.0.mlp.gate_proj.weight: missing"));
}

// norm_topk_prob false: the chosen keep their share of the softmax over all.
TEST(BuilderMoe, NormalizingChangesTheResult) {
  const auto logits = [](bool normalize) {
    auto editor = golden();
    editor.config()["norm_topk_prob"] = normalize;
    editor.write();
    return test::ForwardHarness::load(editor.directory().path()).value()->logits({3, 4, 5});
  };
  EXPECT_EQ(logits(true), logits(true));
  EXPECT_NE(logits(true), logits(false));
}

TEST(BuilderMoe, SharedExpertsAddToTheChosen) {
  auto editor = golden();
  for (const auto& [name, stored] : std::map(editor.tensors())) {
    const std::string from = "model.layers.0.mlp.experts.3.";
    if (name.starts_with(from)) {
      editor.tensors()["model.layers.0.mlp.shared_experts." + name.substr(from.size())] = stored;
    }
  }
  MoeTraits traits = qwen_traits();
  const std::vector<float> chosen = Block(editor, traits).run();
  traits.shared_ffn = 64;
  const Block with_shared(editor, traits);
  ASSERT_EQ(with_shared.error(), "");
  const std::vector<float> shared =
      with_shared.run([&](Context& c, const Tensor& x, const Tensor& y) {
        (*with_shared.block().shared)(c, x, y);
      });
  const std::vector<float> both = with_shared.run();
  float largest = 0;
  for (size_t i = 0; i < both.size(); ++i) {
    EXPECT_EQ(both[i], bf16_to_float(float_to_bf16(chosen[i] + shared[i]))) << i;
    largest = std::max(largest, std::fabs(shared[i]));
  }
  EXPECT_GT(largest, 0.0f);
}

TEST(BuilderMoe, ExpertsWithoutAGateNeedNone) {
  auto editor = golden();
  MoeTraits traits = qwen_traits();
  const std::vector<float> gated = Block(editor, traits).run();
  for (const auto& [name, stored] : std::map(editor.tensors())) {
    if (name.find("layers.0.mlp.experts") != std::string::npos &&
        name.find("gate_proj") != std::string::npos) {
      editor.remove(name);
    }
  }
  EXPECT_THAT(Block(editor, traits).error(), HasSubstr("experts.0.gate_proj.weight: missing"));
  traits.activation = ExpertActivation::Relu2;
  const Block block(editor, traits);
  ASSERT_EQ(block.error(), "");
  EXPECT_NE(block.run(), gated);
}

TEST(BuilderMoe, AnExpertWithoutCalibrationDataIsQuantizedPerToken) {
  auto editor = golden();
  const std::vector<float> all = Block(editor, qwen_traits(), Nvfp4Mode::W4A4).run();
  auto some = golden();
  for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
    for (int e = 0; e < 4; ++e) {
      some.remove("model.layers.0.mlp.experts." + std::to_string(e) + "." + part + ".input_scale");
    }
  }
  const Block half(some, qwen_traits(), Nvfp4Mode::W4A4);
  ASSERT_EQ(half.error(), "");
  EXPECT_THAT(half.table(),
              HasSubstr("12 of 24 matrices without input_scale are quantized per "
                        "token"));
  EXPECT_NE(half.run(), all);
  for (const float value : half.run()) {
    EXPECT_TRUE(std::isfinite(value));
  }
  // Without activations to quantize it makes no difference.
  EXPECT_EQ(Block(some, qwen_traits()).run(), Block(editor, qwen_traits()).run());
}

TEST(BuilderMoe, ReloadingTheSameExpertsChangesNoBitAndOthersAreNoticed) {
  auto editor = golden();
  Block block(editor, qwen_traits(), Nvfp4Mode::W4A4);
  const std::vector<float> before = block.run();
  const Checkpoint same = editor.open().value();
  block.store().commit(block.store().stage(same, block.stream()).value(), block.stream());
  EXPECT_EQ(block.run(), before);

  editor.set_f32("model.layers.0.mlp.experts.2.down_proj.weight_scale_2", 0.5f);
  editor.set_f32("model.layers.0.mlp.experts.2.up_proj.weight_scale_2", 0.25f);  // unlike the gate
  const Checkpoint other = editor.open().value();
  block.store().commit(block.store().stage(other, block.stream()).value(), block.stream());
  EXPECT_EQ(block.run(), Block(editor, qwen_traits(), Nvfp4Mode::W4A4).run());
  EXPECT_NE(block.run(), before);

  // Declared per token, because nothing was calibrated; then scales come.
  auto bare = golden();
  for (const auto& [name, stored] : std::map(bare.tensors())) {
    if (name.find("experts") != std::string::npos && name.ends_with("input_scale")) {
      bare.remove(name);
    }
  }
  Block per_token(bare, qwen_traits(), Nvfp4Mode::W4A4);
  const auto refused = per_token.store().stage(same, per_token.stream());
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text(),
              HasSubstr("input_scale: found an input_scale, expected none"));
}

TEST(BuilderMoe, ARunnerByNameIsTheOneThatRuns) {
  auto editor = golden();
  editor.write();
  const auto load = [&](const char* runner) {
    StreamOwner stream(Device{}, 1);
    ModelOptions options;
    options.isa = test::best_isa();
    options.moe_runner_backend = runner;
    const auto model = load_model(editor.directory().path(), options, stream.get());
    return model ? (*model)->facts().moe_kernels : model.error().text();
  };
  EXPECT_EQ(load("reference"), "cpu_reference");
  EXPECT_EQ(load("cpu_reference"), "cpu_reference");
  EXPECT_NE(load("auto"), "cpu_reference");
  EXPECT_THAT(load("unheard_of"), HasSubstr("this build has no backend of that name"));
  EXPECT_THAT(load("unheard_of"), HasSubstr("model.layers.0.mlp.experts"));
}

}  // namespace
}  // namespace nibble::model
