#include <gtest/gtest.h>

#include "text/template_support.h"

namespace nibble::text {
namespace {

TEST(PercentFormat, ConversionsFollowPython) {
  EXPECT_EQ(
      shown("'%s|%r|%d|%5.2f|%-4d|%04d|%+d|%x|%c|%%' % ('a', 'b', 3.7, 2.5, 7, 42, 1, 255, 'z')"),
      "a|'b'|3| 2.50|7   |0042|+1|ff|z|%");
  EXPECT_EQ(shown("'%(a)s-%(b)03d' % {'a': 1, 'b': 2}"), "1-002");
  EXPECT_EQ(shown("'%.2s' % 'abc'"), "ab");
}

TEST(PercentFormat, TheNumberOfArgumentsMustFit) {
  EXPECT_EQ(shown("'%s %s' % 'a'"), "error: not enough arguments for format string");
  EXPECT_EQ(shown("'x' % 'a'"), "error: not all arguments converted during string formatting");
  EXPECT_TRUE(is_error(shown("'%d' % 'a'")));
  EXPECT_TRUE(is_error(shown("'%(a)s' % 1")));
  EXPECT_TRUE(is_error(shown("'%q' % 1")));
  EXPECT_TRUE(is_error(shown("'%' % 1")));
}

TEST(PercentFormat, WidthsAreLimited) {
  EXPECT_TRUE(is_error(shown("'%999999999d' % 1")));
  EXPECT_TRUE(is_error(shown("'%.999999999f' % 1")));
}

}  // namespace
}  // namespace nibble::text
