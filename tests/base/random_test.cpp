#include "base/random.h"

#include <set>

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(Random, AValueDependsOnSeedAndCounterOnly) {
  EXPECT_EQ(random_u64(7, 3), random_u64(7, 3));
  EXPECT_NE(random_u64(7, 3), random_u64(7, 4));
  EXPECT_NE(random_u64(7, 3), random_u64(8, 3));
}

TEST(Random, UnitValuesAreUniformEnough) {
  double sum = 0;
  std::set<double> seen;
  constexpr int kCount = 20000;
  for (int i = 0; i < kCount; ++i) {
    const double value = random_unit(42, static_cast<uint64_t>(i));
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
    seen.insert(value);
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.01);
  EXPECT_EQ(seen.size(), static_cast<size_t>(kCount));
}

}  // namespace
}  // namespace nibble
