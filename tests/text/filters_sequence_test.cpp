#include <gtest/gtest.h>

#include "text/template_support.h"

namespace nibble::text {
namespace {

constexpr char kRows[] =
    R"({"rows": [{"k": "b", "v": 2}, {"k": "A", "v": 3}, {"k": "b", "v": 1}]})";

TEST(FiltersSequence, EveryFilterDoesWhatJinjasDoes) {
  const struct {
    const char* expression;
    const char* expected;
  } kCases[] = {
      {"[3, 1, 2] | sort ~ ['b', 'A'] | sort ~ ['b', 'A'] | sort(case_sensitive=true)",
       "[1, 2, 3]['A', 'b']['A', 'b']"},
      {"rows | sort(attribute='v') | map(attribute='v') | join(',')", "1,2,3"},
      {"rows | sort(attribute='k,v', reverse=true) | map(attribute='v') | join(',')", "2,1,3"},
      {"rows | sum(attribute='v') ~ [1.5, 1] | sum", "62.5"},
      {"(rows | max(attribute='v')).k ~ [3, 1] | min", "A1"},
      {"rows | unique(attribute='k') | list | length", "2"},
      {"{'b': 1, 'a': 2} | dictsort ~ {'b': 1} | items | list", "[('a', 2), ('b', 1)][('b', 1)]"},
      {"[1, 2, 3] | batch(2, 0) | list", "[[1, 2], [3, 0]]"},
      {"[1, 2] | first ~ [1, 2] | last ~ 'abc' | reverse ~ [1, 2] | reverse | list", "12cba[2, 1]"},
      {"rows | join('-', attribute='k') ~ 'ab' | list", "b-A-b['a', 'b']"},
      {"[] | first is defined or [] | max is defined", "False"},
  };
  for (const auto& test : kCases) {
    EXPECT_EQ(shown(test.expression, kRows), test.expected) << test.expression;
  }
}

TEST(FiltersSequence, WhatHasNoItemsOrNoOrderIsAnError) {
  EXPECT_TRUE(is_error(shown("[1, 'a'] | sort")));
  EXPECT_TRUE(is_error(shown("1 | list")));
  EXPECT_TRUE(is_error(shown("1 | length")));
  EXPECT_TRUE(is_error(shown("1 | items")));
  EXPECT_TRUE(is_error(shown("['a'] | sum")));
  EXPECT_TRUE(is_error(shown("[1] | map('string') | length")));
}

}  // namespace
}  // namespace nibble::text
