#include <gtest/gtest.h>

#include "text/template_support.h"

namespace nibble::text {
namespace {

TEST(Tests, EachHoldsForItsValuesOnly) {
  const struct {
    const char* name;
    const char* yes;
    const char* no;
  } kCases[] = {
      {"defined", "1", "missing"},
      {"undefined", "missing", "none"},
      {"none", "none", "missing"},
      {"string", "'a'", "1"},
      {"number", "1.5", "'1'"},
      {"integer", "1", "true"},
      {"float", "1.0", "1"},
      {"boolean", "false", "0"},
      {"true", "true", "1"},
      {"false", "false", "0"},
      {"mapping", "{}", "[]"},
      {"iterable", "'a'", "1"},
      {"sequence", "(1,)", "1"},
      {"odd", "3", "2"},
      {"even", "2", "3"},
      {"divisibleby(3)", "9", "10"},
      {"eq(1)", "1.0", "2"},
      {"ne(1)", "2", "1"},
      {"lt(2)", "1", "2"},
      {"ge(2)", "2", "1"},
      {"in([1])", "1", "2"},
      {"sameas(none)", "none", "false"},
      {"upper", "'AB'", "'aB'"},
      {"lower", "'ab'", "'1'"},
      {"callable", "range", "1"},
      {"escaped", "'a'|safe", "'a'"},
      {"filter", "'upper'", "'nope'"},
      {"test", "'odd'", "'nope'"},
  };
  for (const auto& test : kCases) {
    const std::string name = test.name;
    EXPECT_EQ(shown(std::string(test.yes) + " is " + name), "True") << name;
    EXPECT_EQ(shown(std::string(test.no) + " is " + name), "False") << name;
  }
}

TEST(Tests, UnknownTestsAndWrongTypesAreErrors) {
  EXPECT_EQ(shown("1 is nope"), "error: no test named 'nope'");
  EXPECT_TRUE(is_error(shown("'a' is odd")));
  EXPECT_TRUE(is_error(shown("1 is divisibleby 0")));
  EXPECT_TRUE(is_error(shown("1 is string(2)")));
}

}  // namespace
}  // namespace nibble::text
