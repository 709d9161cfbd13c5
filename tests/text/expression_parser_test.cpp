#include <gtest/gtest.h>

#include "text/template_support.h"

namespace nibble::text {
namespace {

TEST(ExpressionParser, OperatorsBindAsInJinja) {
  EXPECT_EQ(shown("1 + 2 * 3 - 4 // 2"), "5");
  EXPECT_EQ(shown("2 ** 3 ** 2"), "64");  // left to right, unlike Python
  EXPECT_EQ(shown("-2 ** 2"), "4");
  EXPECT_EQ(shown("1 ~ 2 + 3 ~ 4"), "1234");  // ~ binds tighter than +
  EXPECT_EQ(shown("not 1 == 2"), "True");
  EXPECT_EQ(shown("true or false and false"), "True");
  EXPECT_EQ(shown("1 < 2 < 3 > 2"), "True");
  EXPECT_EQ(shown("1 if 0 else 2 if 0 else 3"), "3");
}

TEST(ExpressionParser, TestsTakeOneBareArgumentAndNegate) {
  EXPECT_EQ(shown("4 is divisibleby 2 and 3 is not even"), "True");
  EXPECT_EQ(shown("not x is defined"), "True");
  EXPECT_EQ(shown("1 is in [1, 2]"), "True");
  EXPECT_TRUE(is_error(shown("1 is number is number")));
}

TEST(ExpressionParser, CallsFiltersAndSubscriptsChain) {
  EXPECT_EQ(shown("'a,b'.split(',')[1] | upper ~ '!'"), "B!");
  EXPECT_EQ(shown("(1, 2,)[0:1]"), "(1,)");
  EXPECT_EQ(shown("'a' 'b'"), "ab");
  EXPECT_EQ(shown("dict(a=1, **{'b': 2})"), "{'a': 1, 'b': 2}");
  EXPECT_EQ(shown("range(*[1, 3])|list"), "[1, 2]");
}

TEST(ExpressionParser, BrokenExpressionsAreRefused) {
  for (const std::string source :
       {"1 +", "", "a.", "a[", "f(a=1, 2)", "{1}", "x |", "a is", "1 2"}) {
    EXPECT_TRUE(is_error(shown(source))) << source;
  }
  EXPECT_TRUE(is_error(shown("99999999999999999999999999")));
}

}  // namespace
}  // namespace nibble::text
