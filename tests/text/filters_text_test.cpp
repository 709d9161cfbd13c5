#include <gtest/gtest.h>

#include "text/template_support.h"

namespace nibble::text {
namespace {

TEST(FiltersText, EveryFilterDoesWhatJinjasDoes) {
  const struct {
    const char* expression;
    const char* expected;
  } kCases[] = {
      {"'hello wORLD' | capitalize", "Hello world"},
      {"'a-b (c' | title", "A-B (C"},
      {"' x ' | trim ~ 'xax' | trim('x')", "xa"},
      {"'aaa' | replace('a', 'b', 2)", "bba"},
      {"x | default('d') ~ '' | default('e', true) ~ 0 | d('f')", "de0"},
      {"'a\nb\n\nc' | indent(2)", "a\n  b\n\n  c"},
      {"'a\nb' | indent('> ', first=true)", "> a\n> b"},
      {"[' 42 ' | int, '3.9' | int, 'x' | int, 'x' | int(7), 'ff' | int(base=16), 2.9 | int]",
       "[42, 3, 0, 7, 255, 2]"},
      {"['1.5' | float, 'x' | float, true | float]", "[1.5, 0.0, 1.0]"},
      {"[2.5 | round, 2.45 | round(1), 2.1 | round(0, 'ceil'), 7 | round]", "[2.0, 2.5, 3.0, 7]"},
      {"'a b  c' | wordcount", "3"},
      {"'abcdefghijkl' | truncate(6, true, '..')", "abcd.."},
      {"'a b/\xC3\xA9' | urlencode", "a%20b/%C3%A9"},
      {"'%s!' | format('x')", "x!"},
      {"'<' | escape ~ -3 | abs ~ 5 | string", "&lt;35"},
  };
  for (const auto& test : kCases) {
    EXPECT_EQ(shown(test.expression), test.expected) << test.expression;
  }
}

TEST(FiltersText, WrongArgumentsAreErrors) {
  EXPECT_TRUE(is_error(shown("'a' | upper(1)")));
  EXPECT_TRUE(is_error(shown("'a' | abs")));
  EXPECT_TRUE(is_error(shown("'a' | replace('a')")));
  EXPECT_TRUE(is_error(shown("x | int")));
  EXPECT_TRUE(is_error(shown("1e60 | int")));
  EXPECT_TRUE(is_error(shown("1 | round(1, 'up')")));
  EXPECT_EQ(shown("1 | nope"), "error: no filter named 'nope'");
}

}  // namespace
}  // namespace nibble::text
