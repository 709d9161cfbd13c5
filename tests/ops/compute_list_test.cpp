#include <gtest/gtest.h>

#include "base/cpu_info.h"
#include "ops/kernels.h"

namespace nibble {
namespace {

TEST(ComputeList, EveryTableIsCompleteAndFoundByItsDevice) {
  ASSERT_FALSE(compute_list().empty());
  for (const SmallOps* ops : compute_list()) {
    EXPECT_EQ(&small_ops(ops->device, ops->isa), ops);
    EXPECT_NE(ops->embedding, nullptr);
    EXPECT_NE(ops->rms_norm, nullptr);
    EXPECT_NE(ops->add_rms_norm, nullptr);
    EXPECT_NE(ops->head_rms_norm, nullptr);
    EXPECT_NE(ops->rope, nullptr);
    EXPECT_NE(ops->silu_mul, nullptr);
    EXPECT_NE(ops->add, nullptr);
    EXPECT_NE(ops->store_kv, nullptr);
    EXPECT_NE(ops->gather_rows, nullptr);
  }
}

TEST(ComputeList, EachLevelGetsTheHighestTableThatItCanRun) {
  const auto at = [](CpuIsa isa) -> const SmallOps& {
    return small_ops(Device::Kind::Cpu, static_cast<int>(isa));
  };
  EXPECT_EQ(at(CpuIsa::Scalar).isa, static_cast<int>(CpuIsa::Scalar));
  EXPECT_NE(&at(CpuIsa::Avx2), &at(CpuIsa::Scalar));
  EXPECT_NE(&at(CpuIsa::Avx512), &at(CpuIsa::Avx2));
  EXPECT_EQ(&at(CpuIsa::Avx512Bf16), &at(CpuIsa::Avx512));  // no table of its own
}

}  // namespace
}  // namespace nibble
