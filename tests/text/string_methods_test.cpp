#include <gtest/gtest.h>

#include "text/template_support.h"

namespace nibble::text {
namespace {

TEST(StringMethods, EveryMethodDoesWhatPythonsDoes) {
  const struct {
    const char* expression;
    const char* expected;
  } kCases[] = {
      {"'a,b,c'.split(',', 1)", "['a', 'b,c']"},
      {"' a  b '.split()", "['a', 'b']"},
      {"'a,b,c'.rsplit(',', 1)", "['a,b', 'c']"},
      {"'a\nb\r\nc'.splitlines()", "['a', 'b', 'c']"},
      {"'-'.join(['a', 'b'])", "a-b"},
      {"'xxaxx'.strip('x') ~ 'xa'.lstrip('x') ~ 'ax'.rstrip('x')", "aaa"},
      {"['abc'.startswith('b', 1), 'abc'.endswith(('x', 'c')), 'abc'.startswith('d')]",
       "[True, True, False]"},
      {"['h\xC3\xA9llo'.find('l'), 'abab'.rfind('b'), 'x'.find('y'), 'abab'.count('ab')]",
       "[2, 3, -1, 2]"},
      {"'aXb'.swapcase() ~ 'stra\xC3\x9F"
       "e'.upper() ~ 'AB'.lower() ~ 'ab cd'.title()",
       "AxBSTRASSEabAb Cd"},
      {"'ab'.replace('', '-')", "-a-b-"},
      {"['a'.center(4), 'a'.ljust(3, '.'), 'a'.rjust(3), '-7'.zfill(4)]",
       "[' a  ', 'a..', '  a', '-007']"},
      {"['12'.isdigit(), 'a1'.isalpha(), ' '.isspace(), 'AB'.isupper(), ''.isdigit()]",
       "[True, False, True, True, False]"},
      {"'a=b=c'.partition('=') ~ 'a=b=c'.rpartition('=')", "('a', '=', 'b=c')('a=b', '=', 'c')"},
      {"'prefix'.removeprefix('pre').removesuffix('x')", "fi"},
      {"'{} {1} {n} {{}}'.format(1, 2, n=3)", "1 2 3 {}"},
  };
  for (const auto& test : kCases) {
    EXPECT_EQ(shown(test.expression), test.expected) << test.expression;
  }
}

TEST(StringMethods, WrongArgumentsAreErrors) {
  EXPECT_EQ(shown("'a'.split('')"), "error: empty separator");
  EXPECT_EQ(shown("'a'.index('b')"), "error: substring not found");
  EXPECT_EQ(shown("'a'.join([1])"), "error: sequence item 0: expected str instance, int found");
  EXPECT_TRUE(is_error(shown("'a'.upper(1)")));
  EXPECT_TRUE(is_error(shown("'a'.replace('a')")));
  EXPECT_TRUE(is_error(shown("'{0.x}'.format(1)")));
  EXPECT_TRUE(is_error(shown("'a'.center(99999999)")));
  EXPECT_EQ(shown("'a'.nope is defined"), "False");
}

}  // namespace
}  // namespace nibble::text
