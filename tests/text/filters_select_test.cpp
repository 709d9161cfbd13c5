#include <gtest/gtest.h>

#include "text/template_support.h"

namespace nibble::text {
namespace {

constexpr char kRows[] = R"({"rows": [{"k": "a", "n": {"x": 1}}, {"k": "b"}, {}]})";

TEST(FiltersSelect, ItemsAreChosenByTestsAndAttributes) {
  EXPECT_EQ(shown("[1, 'a', none] | select('string') | list"), "['a']");
  EXPECT_EQ(shown("[1, 0, 2] | select | list ~ [1, 2] | reject('eq', 1) | list"), "[1, 2][2]");
  EXPECT_EQ(shown("rows | selectattr('k', 'equalto', 'b') | list", kRows), "[{'k': 'b'}]");
  EXPECT_EQ(shown("rows | rejectattr('k') | list", kRows), "[{}]");
}

TEST(FiltersSelect, MapTakesAFilterOrAnAttributePath) {
  EXPECT_EQ(shown("['a', 'b'] | map('replace', 'a', 'c') | join", kRows), "cb");
  EXPECT_EQ(shown("rows | map(attribute='n.x', default=0) | list | length", kRows),
            "error: 'dict object' has no attribute 'n'");
  EXPECT_EQ(shown("rows | map(attribute='k', default='?') | join", kRows), "ab?");
}

TEST(FiltersSelect, TheResultIsAGeneratorAndSoAlwaysTrue) {
  EXPECT_EQ(shown("'yes' if [] | select else 'no'"), "yes");
  EXPECT_EQ(shown("none | map('upper') | list"), "[]");
}

TEST(FiltersSelect, UnknownNamesAndMissingArgumentsAreErrors) {
  EXPECT_EQ(shown("[1] | select('nope') | list"), "error: no test named 'nope'");
  EXPECT_EQ(shown("[1] | map('nope') | list"), "error: no filter named 'nope'");
  EXPECT_TRUE(is_error(shown("[1] | selectattr | list")));
}

}  // namespace
}  // namespace nibble::text
