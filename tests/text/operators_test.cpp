#include <gtest/gtest.h>

#include "text/template_support.h"

namespace nibble::text {
namespace {

TEST(Operators, ArithmeticIsPythons) {
  EXPECT_EQ(shown("[7 // 2, -7 // 2, 7 % -3, -7 % 3, 7 / 2, 2 ** 10, 2 ** -1, 7.5 // 2, -7.5 % 2]"),
            "[3, -4, -2, 2, 3.5, 1024, 0.5, 3.0, 0.5]");
  EXPECT_EQ(shown("true + 1"), "2");
  EXPECT_EQ(shown("'ab' * 2 + 'c'"), "ababc");
  EXPECT_EQ(shown("[1] + [2] * 2"), "[1, 2, 2]");
}

TEST(Operators, WrongTypesAndZeroAreErrors) {
  EXPECT_EQ(shown("'a' + 1"), "error: can only concatenate str (not \"int\") to str");
  EXPECT_EQ(shown("1 + 'a'"), "error: unsupported operand type(s) for +: 'int' and 'str'");
  EXPECT_EQ(shown("1 / 0"), "error: division by zero");
  EXPECT_EQ(shown("1 < 'a'"), "error: '<' not supported between instances of 'int' and 'str'");
  EXPECT_EQ(shown("x + 1"), "error: 'x' is undefined");
}

TEST(Operators, IntegersBeyondTheLimitAreRefusedAndDoNotWrap) {
  EXPECT_EQ(shown("10 ** 29 + 1"), "100000000000000000000000000001");
  EXPECT_TRUE(is_error(shown("10 ** 50")));
  EXPECT_TRUE(is_error(shown("10 ** 29 * 10 ** 29")));
  EXPECT_EQ(shown("1 ** 99999999999"), "1");
}

TEST(Operators, MembershipLooksInStringsListsAndKeys) {
  EXPECT_EQ(shown("['a' in 'cat', 1 in [1.0], 'k' in {'k': 0}, 2 not in (1,), 1 in x]"),
            "[True, True, True, True, False]");
  EXPECT_TRUE(is_error(shown("1 in 'a'")));
  EXPECT_TRUE(is_error(shown("[] in {}")));
  EXPECT_TRUE(is_error(shown("1 in 2")));
}

TEST(Operators, SafeTextEscapesWhatIsAddedToIt) {
  EXPECT_EQ(shown("'<b>' | safe + '<'"), "<b>&lt;");
  EXPECT_EQ(shown("('<b>' | safe) ~ '<'"), "<b><");
}

}  // namespace
}  // namespace nibble::text
