#include "ops/gemm.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cpu_info.h"

namespace nibble {
namespace {

GemmDesc qkv() {
  GemmDesc desc;
  desc.isa = static_cast<int>(CpuIsa::Scalar);
  desc.mode = kW4A16;
  desc.n = 6144;
  desc.k = 4096;
  desc.part_rows = {4096, 1024, 1024, 0};
  desc.num_parts = 3;
  return desc;
}

TEST(Gemm, DescribesADescInOneLine) {
  EXPECT_EQ(describe(qkv()), "w4a16 6144x4096 (4096+1024+1024) bf16 on cpu scalar");
  GemmDesc head = qkv();
  head.num_parts = 1;
  head.mode = kBf16;
  head.out = DType::F32;
  EXPECT_EQ(describe(head), "bf16 6144x4096 f32 on cpu scalar");
}

TEST(Gemm, EveryBackendHasItsOwnNameAndACompleteTable) {
  std::set<std::string_view> names;
  for (const GemmBackend* backend : gemm_backends()) {
    EXPECT_TRUE(names.insert(backend->name).second) << backend->name;
    EXPECT_FALSE(backend->family.empty()) << backend->name;
    EXPECT_NE(backend->supports, nullptr) << backend->name;
    EXPECT_NE(backend->packed_layout, nullptr) << backend->name;
    EXPECT_NE(backend->pack, nullptr) << backend->name;
    EXPECT_NE(backend->workspace_bytes, nullptr) << backend->name;
    EXPECT_NE(backend->run, nullptr) << backend->name;
  }
}

TEST(Gemm, AScalarCpuGetsTheReferenceAndAnImpossibleDescIsRefusedWithWords) {
  const auto chosen = select_gemm(qkv(), "auto");
  ASSERT_TRUE(chosen.has_value()) << chosen.error().text();
  EXPECT_EQ((*chosen)->name, "cpu_reference");
  GemmDesc odd = qkv();
  odd.k = 4097;
  const auto refused = select_gemm(odd, "auto");
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, testing::HasSubstr("multiple of 16"));
}

}  // namespace
}  // namespace nibble
