#include "ops/attention.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(AttentionSelection, TakesABackendByAutoAndByNameAndRefusesTheRest) {
  AttentionDesc desc;
  desc.heads = 8;
  desc.kv_heads = 2;
  desc.head_dim = 64;
  const auto chosen = select_attention(desc, "auto");
  ASSERT_TRUE(chosen.has_value()) << chosen.error().text();
  EXPECT_EQ(select_attention(desc, (*chosen)->name).value(), *chosen);
  EXPECT_EQ(select_attention(desc, "reference").value()->name, "cpu_reference");
  EXPECT_FALSE(select_attention(desc, "no_such_backend").has_value());
  desc.kv_heads = 3;
  const auto refused = select_attention(desc, "auto");
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, testing::HasSubstr("multiple of kv_heads"));
  EXPECT_THAT(refused.error().message, testing::HasSubstr("prefill attention"));
  desc.phase = AttentionPhase::Decode;
  EXPECT_THAT(select_attention(desc, "auto").error().message,
              testing::HasSubstr("decode attention"));
}

TEST(AttentionSelection, HopperHasAKernelForPromptAndOneForGeneratedTokens) {
  bool built = false;
  for (const AttentionBackend* backend : attention_backends()) {
    built = built || backend->family == "sm90";
  }
  if (!built) {
    GTEST_SKIP() << "built without CUDA";
  }
  AttentionDesc desc;
  desc.device = Device::Kind::Cuda;
  desc.isa = 90;
  desc.heads = 32;
  desc.kv_heads = 8;
  desc.head_dim = 128;
  desc.scale = 0.1f;
  const auto name = [&desc](std::string_view wanted) -> std::string {
    const auto chosen = select_attention(desc, wanted);
    return chosen ? std::string((*chosen)->name) : chosen.error().message;
  };
  EXPECT_EQ(name("auto"), "attention_prefill_sm90");
  EXPECT_EQ(name("sm90"), "attention_prefill_sm90");
  EXPECT_THAT(name("attention_decode_paged"), testing::HasSubstr("decode only"));
  desc.phase = AttentionPhase::Decode;
  EXPECT_EQ(name("auto"), "attention_decode_paged");
  EXPECT_EQ(name("sm90"), "attention_decode_paged");
  EXPECT_THAT(name("attention_prefill_sm90"), testing::HasSubstr("prefill only"));
  desc.page_size = 24;
  EXPECT_THAT(name("sm90"), testing::HasSubstr("power of two"));
  desc.page_size = 64;
  desc.head_dim = 80;
  EXPECT_THAT(name("sm90"), testing::HasSubstr("head_dim"));
  desc.head_dim = 64;
  EXPECT_EQ(name("sm90"), "attention_decode_paged");
  desc.heads = 17 * 8;
  EXPECT_THAT(name("sm90"), testing::HasSubstr("16 heads"));
  desc.heads = 12;
  EXPECT_THAT(name("sm90"), testing::HasSubstr("multiple of kv_heads"));
}

}  // namespace
}  // namespace nibble
