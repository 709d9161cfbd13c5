#include "text/template/access.h"

#include <gtest/gtest.h>

#include "text/template_support.h"

namespace nibble::text {
namespace {

TEST(Access, AttributesPreferMethodsAndSubscriptsPreferItems) {
  const std::string d = R"({"d": {"items": 7, "a": 1}})";
  EXPECT_EQ(shown("d['items']", d), "7");
  EXPECT_EQ(shown("d.items() | list", d), "[('items', 7), ('a', 1)]");
  EXPECT_EQ(shown("d.a ~ d['a'] ~ d.get('b', 'c')", d), "11c");
}

TEST(Access, WhatIsMissingIsUndefinedAndItsAttributesAreErrors) {
  EXPECT_EQ(shown("d.x", R"({"d": {}})"), "");
  EXPECT_EQ(shown("d.x.y", R"({"d": {}})"), "error: 'dict object' has no attribute 'x'");
  EXPECT_EQ(shown("none.x is defined"), "False");
  EXPECT_EQ(shown("[1][5] is defined"), "False");
  EXPECT_EQ(shown("missing.x"), "error: 'missing' is undefined");
}

TEST(Access, SlicesFollowPythonForAllSteps) {
  EXPECT_EQ(shown("['abcdef'[1:4], 'abcdef'[::-1], 'abcdef'[-2:], 'abcdef'[4:1:-2], 'ab'[9:]]"),
            "['bcd', 'fedcba', 'ef', 'ec', '']");
  EXPECT_EQ(shown("'h\xC3\xA9llo'[1:3]"), "\xC3\xA9l");
  EXPECT_EQ(shown("[1, 2, 3][::2]"), "[1, 3]");
  EXPECT_TRUE(is_error(shown("[1][::0]")));
  EXPECT_TRUE(is_error(shown("{}[1:]")));
  EXPECT_TRUE(is_error(shown("[1]['a':]")));
}

TEST(Access, PrivateAttributesAreUnsafe) { EXPECT_TRUE(is_error(shown("''.__class__"))); }

TEST(Access, IteratingAGeneratorUsesItUp) {
  EXPECT_EQ(rendered("{% set g = [1, 2] | map('string') %}{{ g | list }}{{ g | list }}"),
            "['1', '2'][]");
}

}  // namespace
}  // namespace nibble::text
