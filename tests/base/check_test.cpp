#include "base/check.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(CheckDeathTest, AFailedCheckPrintsConditionValuesAndPlace) {
  const int k = 17;
  EXPECT_DEATH(CHECK(k % 16 == 0, "k must be a multiple of 16, got ", k),
               "k % 16 == 0: k must be a multiple of 16, got 17 .*check_test.cpp");
  EXPECT_DEATH(CHECK(k == 0), "check failed: k == 0 ");
}

TEST(Check, APassingCheckEvaluatesItsConditionOnce) {
  int calls = 0;
  CHECK(++calls == 1, "never printed");
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace nibble
