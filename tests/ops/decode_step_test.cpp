#include "ops/decode_step.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble {
namespace {

using testing::HasSubstr;

GemmDesc product(int64_t n, int64_t k, Epilogue epilogue = Epilogue::None) {
  GemmDesc desc;
  desc.device = Device::Kind::Cuda;
  desc.isa = 90;
  desc.mode = kW4A16;
  desc.n = desc.part_rows[0] = n;
  desc.k = k;
  desc.epilogue = epilogue;
  if (epilogue == Epilogue::SwiGlu) {
    desc.num_parts = 2;
    desc.part_rows[0] = desc.part_rows[1] = n / 2;
  }
  return desc;
}

// Qwen3-8B's layers.
DecodeStepDesc taken() {
  DecodeStepDesc desc;
  desc.device = {Device::Kind::Cuda, 0};
  desc.isa = 90;
  desc.layers = 36;
  desc.products = {product(6144, 4096),
                   product(4096, 4096),
                   product(24576, 4096, Epilogue::SwiGlu),
                   product(4096, 12288)};
  desc.product_kernels.fill("nvfp4_w4a16_sm90");
  desc.attention.device = Device::Kind::Cuda;
  desc.attention.phase = AttentionPhase::Decode;
  desc.attention.isa = 90;
  desc.attention.heads = 32;
  desc.attention.kv_heads = 8;
  desc.attention.head_dim = 128;
  desc.attention.scale = 0.088f;
  desc.attention_kernel = "attention_decode_paged";
  desc.head_norms = true;
  desc.rotary_dim = 128;
  return desc;
}

class DecodeStepSelection : public testing::Test {
 protected:
  void SetUp() override {
    if (decode_step_backends().empty()) {
      GTEST_SKIP() << "built without CUDA";
    }
  }
  // "taken by NAME", or why not.
  static std::string outcome(const DecodeStepDesc& desc) {
    const auto chosen = select_decode_step(desc);
    return chosen ? "taken by " + std::string((*chosen)->name) : chosen.error().message;
  }
  template <typename Change>
  static std::string with(const Change& change) {
    DecodeStepDesc desc = taken();
    change(desc);
    return outcome(desc);
  }
};

TEST_F(DecodeStepSelection, HopperTakesTheLayersOfAPublishedModel) {
  EXPECT_EQ(outcome(taken()), "taken by decode_step_sm90");
  EXPECT_EQ(with([](auto& desc) { desc.products[kDecodeQkv].epilogue = Epilogue::Bias; }),
            "taken by decode_step_sm90");
  EXPECT_EQ(with([](auto& desc) { desc.rotary_dim = 64; }), "taken by decode_step_sm90");
}

TEST_F(DecodeStepSelection, RefusesOtherDevices) {
  EXPECT_THAT(with([](auto& desc) { desc.isa = 80; }), HasSubstr("needs a Hopper GPU"));
  EXPECT_THAT(with([](auto& desc) { desc.device = {}; }), HasSubstr("needs a Hopper GPU"));
}

TEST_F(DecodeStepSelection, RefusesProductsOfOtherKernelsOrWithMoreToDo) {
  for (size_t i = 0; i < kNumDecodeProducts; ++i) {
    EXPECT_THAT(with([i](auto& desc) { desc.product_kernels[i] = "nvfp4_w4a16_sm80"; }),
                HasSubstr("computed by nvfp4_w4a16_sm80, not by nvfp4_w4a16_sm90"));
    EXPECT_THAT(with([i](auto& desc) { desc.products[i].pre_quant_scale = true; }),
                HasSubstr("scaled per channel"));
  }
  for (const DecodeProduct i : {kDecodeO, kDecodeDown}) {
    EXPECT_THAT(with([i](auto& desc) { desc.products[i].epilogue = Epilogue::Bias; }),
                HasSubstr("other than that of q, k and v has a bias"));
  }
  for (const Epilogue epilogue : {Epilogue::None, Epilogue::Bias}) {
    EXPECT_THAT(with([=](auto& desc) { desc.products[kDecodeGateUp].epilogue = epilogue; }),
                HasSubstr("not SwiGLU in one"));
  }
}

TEST_F(DecodeStepSelection, RefusesOtherAttention) {
  EXPECT_THAT(with([](auto& desc) { desc.attention.kv = DType::E4M3; }),
              HasSubstr("KV cache of bf16"));
  EXPECT_THAT(with([](auto& desc) { desc.attention_kernel = "attention_plain_cuda"; }),
              HasSubstr("computed by attention_plain_cuda, not by attention_decode_paged"));
  EXPECT_THAT(with([](auto& desc) { desc.norm = DType::F32; }), HasSubstr("norms of bf16"));
  for (const int64_t rotary_dim : {0, 24, 256}) {
    EXPECT_THAT(with([=](auto& desc) { desc.rotary_dim = rotary_dim; }),
                HasSubstr("multiple of 16"));
  }
}

TEST_F(DecodeStepSelection, RefusesShapesThatTheKernelHasNoCodeFor) {
  EXPECT_THAT(with([](auto& desc) {
                desc.attention.head_dim = 96;
                desc.rotary_dim = 96;
                desc.products[kDecodeQkv].n = (32 + 2 * 8) * 96;
                desc.products[kDecodeO].k = 32 * 96;
              }),
              HasSubstr("decode_step_sm90 ("));
  EXPECT_THAT(with([](auto& desc) { desc.attention.page_size = 24; }),
              HasSubstr("decode_step_sm90 ("));
}

TEST(DecodeSteps, AreForGpusOnly) {
  DecodeStepDesc desc;
  desc.layers = 2;
  EXPECT_THAT(select_decode_step(desc).error().message,
              HasSubstr("a decode step of 2 layers on cpu scalar"));
}

}  // namespace
}  // namespace nibble
