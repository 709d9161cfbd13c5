#include "quantize/budget.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::quantize {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Budget, WhatIsNoNumberIsCalledSo) {
  for (const double sign : {1.0, -1.0}) {
    const double nan = std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
    EXPECT_THAT(check_budget(nan).error().message, HasSubstr("(all FP8), found NaN"));
  }
}

TEST(Budget, SpendsOnWhatLosesMostForItsSize) {
  // 100 weights each at 4.5; 8 bits cost 350 more.
  std::vector<BudgetItem> items = {{.weights = 100, .loss = 0.01},
                                   {.weights = 100, .loss = 0.04},
                                   {.weights = 400, .loss = 0.05}};
  EXPECT_THAT(spend_budget(items, 4.5), ElementsAre(false, false, false));
  EXPECT_THAT(spend_budget(items, 4.5 + 350.0 / 600), ElementsAre(false, true, false));
  EXPECT_THAT(spend_budget(items, 4.5 + 349.0 / 600), ElementsAre(false, false, false));
  // After the second, the third is too large but the first fits.
  EXPECT_THAT(spend_budget(items, 4.5 + 700.0 / 600), ElementsAre(true, true, false));
  EXPECT_THAT(spend_budget(items, 8), ElementsAre(true, true, true));
}

TEST(Budget, FixedItemsCountButAreNotTouched) {
  const std::vector<BudgetItem> items = {
      {.weights = 100, .loss = 1, .fixed = true, .bits = kFp8Bits}, {.weights = 100, .loss = 0.1}};
  EXPECT_THAT(spend_budget(items, 6.25), ElementsAre(false, false));
  EXPECT_THAT(spend_budget(items, 4.5), ElementsAre(false, false));  // above it already
  EXPECT_THAT(spend_budget(items, 8), ElementsAre(false, true));
}

TEST(Budget, RefusesWhatNoMixReaches) {
  EXPECT_TRUE(check_budget(4.5).has_value());
  EXPECT_TRUE(check_budget(8).has_value());
  for (const double bits : {4.4, 8.1, 0.0, -1.0}) {
    EXPECT_THAT(check_budget(bits).error().text(), HasSubstr("expected 4.5 (all NVFP4) to 8"));
  }
}

}  // namespace
}  // namespace nibble::quantize
