#include "quantize/method.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::quantize {
namespace {

using ::testing::HasSubstr;

TEST(Method, NamesReadBackAndUnknownOnesAreListed) {
  for (const Method method :
       {Method::Max, Method::FourOverSix, Method::Sweep, Method::Gptq, Method::Full}) {
    EXPECT_EQ(*parse_method(to_string(method)), method);
  }
  const auto refused = parse_method("awq");
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text(), HasSubstr("max, four-over-six, sweep, gptq, full"));
}

TEST(Method, OnlyTheDataFreeOnesNeedNoCalibration) {
  EXPECT_FALSE(needs_calibration(Method::Max));
  EXPECT_FALSE(needs_calibration(Method::FourOverSix));
  EXPECT_TRUE(needs_calibration(Method::Sweep));
  EXPECT_FALSE(needs_hessian(Method::Sweep));
  EXPECT_TRUE(needs_hessian(Method::Full));
}

}  // namespace
}  // namespace nibble::quantize
