#include "ops/attention.h"

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

}  // namespace
}  // namespace nibble
