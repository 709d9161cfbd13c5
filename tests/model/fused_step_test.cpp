#include "model/fused_step.h"

#include <initializer_list>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_editor.h"
#include "support/data_dir.h"
#include "support/forward_harness.h"
#include "support/random_model.h"
#include "support/temp_dir.h"

namespace nibble::model {
namespace {

using testing::HasSubstr;

// What declare_model(), which touches no device, says about decode steps.
struct Declared {
  std::string kernel;
  std::string why_not;
};

class FusedStepChoice : public testing::Test {
 protected:
  void SetUp() override {
    if (decode_step_backends().empty()) {
      GTEST_SKIP() << "built without CUDA";
    }
  }
  static ModelOptions hopper() {
    ModelOptions options;
    options.device = {Device::Kind::Cuda, 0};
    options.isa = 90;
    return options;
  }
  static Declared declare(const checkpoint::Checkpoint& checkpoint,
                          const ModelOptions& options = hopper()) {
    const auto model = declare_model(checkpoint, options);
    if (!model) {
      return {"", "not declared: " + model.error().text()};
    }
    EXPECT_EQ((*model)->step_state_bytes() > 0, !(*model)->facts().step_kernel.empty());
    return {(*model)->facts().step_kernel, (*model)->facts().step_refusal};
  }
  static checkpoint::Checkpoint golden(const std::string& name) {
    return checkpoint::Checkpoint::open(test::data_path("golden/" + name)).value();
  }
  // head_dim 32: Hopper's attention kernels do not take it, and what they need is not asked of a
  // device.
  static std::string refusal(const ModelOptions& options) {
    const Declared found = declare(golden("llama-nvfp4"), options);
    EXPECT_EQ(found.kernel, "");
    return found.why_not;
  }
};

TEST_F(FusedStepChoice, TakesADenseModelWithTheKernelsThatItAgreesWith) {
  if (!test::has_device(Device::Kind::Cuda)) {
    GTEST_SKIP() << "attention on Hopper asks the device for its size";
  }
  const auto found = [](const test::RandomModel& model, std::optional<bool> asked) {
    const test::TempDir directory;
    test::write_random_model(model, directory.path());
    ModelOptions options = hopper();
    options.fused_step = asked;
    return declare(checkpoint::Checkpoint::open_online(directory.path()).value(), options);
  };
  EXPECT_EQ(found({}, true).kernel, "decode_step_sm90");
  EXPECT_EQ(found({}, true).why_not, "");
  EXPECT_EQ(found({}, std::nullopt).kernel, "");
  EXPECT_THAT(found({}, std::nullopt).why_not, HasSubstr("expected to be slower"));
  const test::RandomModel wider{.layers = 1, .hidden = 2048};
  EXPECT_EQ(found(wider, std::nullopt).kernel, "decode_step_sm90");
  EXPECT_EQ(found(wider, false).kernel, "");
}

TEST_F(FusedStepChoice, HoldsToTheOptions) {
  ModelOptions options = hopper();
  EXPECT_THAT(refusal(options), HasSubstr("computed by attention_plain_cuda"));
  options.fused_step = false;
  EXPECT_EQ(refusal(options), "not asked for");
  options = hopper();
  options.slice.head = false;
  EXPECT_EQ(refusal(options), "a part of a model");
  options = hopper();
  options.nvfp4_mode = Nvfp4Mode::W4A4;
  EXPECT_THAT(refusal(options), HasSubstr("computed by nvfp4_w4a4_sm90"));
  options = hopper();
  options.fp4_gemm_backend = "sm80";
  EXPECT_THAT(refusal(options), HasSubstr("computed by nvfp4_w4a16_sm80"));
  options = hopper();
  options.kv_dtype = DType::E4M3;
  EXPECT_THAT(refusal(options), HasSubstr("KV cache of bf16"));
  options = hopper();
  options.isa = 80;
  EXPECT_THAT(refusal(options), HasSubstr("needs a Hopper GPU"));
  options = hopper();
  options.nvfp4_rules = {{"model.layers.1.mlp.down_proj", Nvfp4Mode::W4A4}};
  EXPECT_EQ(refusal(options), "layer 1 is unlike those before it");
}

TEST_F(FusedStepChoice, RefusesOtherFormsOfWeights) {
  EXPECT_THAT(declare(golden("llama")).why_not, HasSubstr("computed by gemm_bf16_"));
  EXPECT_THAT(declare(golden("llama-nvfp4-awq")).why_not, HasSubstr("scaled per channel"));
}

// llama-nvfp4 with biases of zero in both layers.
std::string with_biases(std::initializer_list<std::pair<const char*, int64_t>> modules) {
  checkpoint::CheckpointEditor editor(test::data_path("golden/llama-nvfp4"));
  for (const char* layer : {"0", "1"}) {
    for (const auto& [module, n] : modules) {
      editor.tensors()[std::string("model.layers.") + layer + "." + module + ".bias"] = {
          DType::BF16, Shape{n}, std::vector<std::byte>(static_cast<size_t>(n) * 2)};
    }
  }
  ModelOptions options;
  options.device = {Device::Kind::Cuda, 0};
  options.isa = 90;
  const auto model = declare_model(editor.open().value(), options);
  return model ? (*model)->facts().step_refusal : model.error().text();
}

TEST_F(FusedStepChoice, AllowsABiasOfQAndKAndVOnly) {
  EXPECT_THAT(
      with_biases({{"self_attn.q_proj", 128}, {"self_attn.k_proj", 64}, {"self_attn.v_proj", 64}}),
      HasSubstr("computed by attention_plain_cuda"));
  EXPECT_THAT(with_biases({{"self_attn.o_proj", 128}}), HasSubstr("has a bias"));
  EXPECT_THAT(with_biases({{"mlp.down_proj", 128}}), HasSubstr("has a bias"));
  EXPECT_THAT(with_biases({{"mlp.gate_proj", 256}, {"mlp.up_proj", 256}}),
              HasSubstr("not SwiGLU in one"));
}

TEST(FusedStep, IsNotOfACpu) {
  const auto harness = test::ForwardHarness::load(test::data_path("golden/qwen3-nvfp4"));
  ASSERT_TRUE(harness.has_value()) << harness.error().text();
  const Model& model = (*harness)->model();
  EXPECT_EQ(model.facts().step_kernel, "");
  EXPECT_THAT(model.facts().step_refusal, HasSubstr("on cpu"));
  EXPECT_EQ(model.step_state_bytes(), 0);
  const auto moe = test::ForwardHarness::load(test::data_path("golden/qwen3_moe-nvfp4"));
  ASSERT_TRUE(moe.has_value()) << moe.error().text();
  EXPECT_THAT((*moe)->model().facts().step_refusal, HasSubstr("is a mixture of experts"));
}

}  // namespace
}  // namespace nibble::model
