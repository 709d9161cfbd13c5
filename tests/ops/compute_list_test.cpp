#include <gtest/gtest.h>

#include "ops/kernels.h"

namespace nibble {
namespace {

TEST(ComputeList, EveryTableIsCompleteAndFoundByItsDevice) {
  ASSERT_FALSE(compute_list().empty());
  for (const SmallOps* ops : compute_list()) {
    EXPECT_EQ(&small_ops(ops->device), ops);
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

}  // namespace
}  // namespace nibble
