#include "base/cpu_info.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(CpuInfo, LevelsAreNamedAndOrdered) {
  for (CpuIsa isa : {CpuIsa::Scalar, CpuIsa::Avx2, CpuIsa::Avx512, CpuIsa::Avx512Bf16}) {
    EXPECT_EQ(*parse_cpu_isa(to_string(isa)), isa);
  }
  EXPECT_LT(CpuIsa::Scalar, CpuIsa::Avx2);
  EXPECT_LT(CpuIsa::Avx512, CpuIsa::Avx512Bf16);
  EXPECT_FALSE(parse_cpu_isa("sse9").has_value());
}

TEST(CpuInfo, DetectsALevelAndAName) {
  EXPECT_GE(detect_cpu_isa(), CpuIsa::Scalar);
  EXPECT_FALSE(cpu_model_name().empty());
  EXPECT_GE(largest_cache_bytes(), 0);
}

}  // namespace
}  // namespace nibble
