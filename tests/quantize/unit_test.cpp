#include "quantize/unit.h"

#include <gtest/gtest.h>

namespace nibble::quantize {
namespace {

TEST(Unit, InputsThatSawTooFewTokensFallBackToSimplerRecipes) {
  InputStatistics input;
  input.tokens = 1000;
  EXPECT_EQ(usable_method(Method::Gptq, &input, 4096), Method::Gptq);
  EXPECT_EQ(usable_method(Method::Full, &input, 16384), Method::Sweep);
  input.tokens = 31;
  EXPECT_EQ(usable_method(Method::Full, &input, 64), Method::FourOverSix);
  EXPECT_EQ(usable_method(Method::Sweep, nullptr, 64), Method::FourOverSix);
  EXPECT_EQ(usable_method(Method::Max, nullptr, 64), Method::Max);
}

}  // namespace
}  // namespace nibble::quantize
