#include "ops/experts.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cpu_info.h"

namespace nibble {
namespace {

ExpertsDesc qwen3() {
  ExpertsDesc desc;
  desc.isa = static_cast<int>(CpuIsa::Scalar);
  desc.mode = kW4A16;
  desc.experts = 128;
  desc.topk = 8;
  desc.hidden = 2048;
  desc.ffn = 768;
  return desc;
}

TEST(Experts, DescribesADescInOneLine) {
  EXPECT_EQ(describe(qwen3()), "w4a16 128 experts (8 a token) 2048x768 on cpu scalar");
}

TEST(Experts, EveryBackendHasItsOwnNameAndACompleteTable) {
  std::set<std::string_view> names;
  for (const ExpertsBackend* backend : experts_backends()) {
    EXPECT_TRUE(names.insert(backend->name).second) << backend->name;
    EXPECT_FALSE(backend->family.empty()) << backend->name;
    EXPECT_NE(backend->supports, nullptr) << backend->name;
    EXPECT_NE(backend->packed_layout, nullptr) << backend->name;
    EXPECT_NE(backend->pack, nullptr) << backend->name;
    EXPECT_NE(backend->workspace_bytes, nullptr) << backend->name;
    EXPECT_NE(backend->run, nullptr) << backend->name;
  }
}

TEST(Experts, AScalarCpuGetsTheReferenceAndABadDescIsRefusedWithWords) {
  EXPECT_EQ(select_experts(qwen3(), "auto").value()->name, "cpu_reference");
  ExpertsDesc odd = qwen3();
  odd.topk = 129;
  const auto refused = select_experts(odd, "auto");
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, testing::HasSubstr("topk at most experts"));
}

}  // namespace
}  // namespace nibble
