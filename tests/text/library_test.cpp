#include "text/template/library.h"

#include <set>

#include <gtest/gtest.h>

#include "text/template_support.h"

namespace nibble::text::jinja {
namespace {

TEST(Library, NoNameIsInTheTablesTwice) {
  std::set<std::string_view> names;
  for (const auto table : {text_filters(), sequence_filters(), select_filters()}) {
    for (const Filter& filter : table) {
      EXPECT_TRUE(names.insert(filter.name).second) << filter.name;
      EXPECT_TRUE(has_filter(filter.name));
    }
  }
  std::set<std::string_view> tests;
  for (const jinja::Test& test : all_tests()) {
    EXPECT_TRUE(tests.insert(test.name).second) << test.name;
  }
  EXPECT_FALSE(has_filter("nope"));
  EXPECT_FALSE(has_test("nope"));
}

TEST(Library, ArgumentsBindByPositionAndName) {
  Arguments arguments;
  arguments.positional.push_back(Value::of_int(1));
  arguments.named.emplace_back("c", Value::of_int(3));
  const auto bound = bind("f", arguments, {"a", "b", "c"});
  EXPECT_TRUE(bound[0]->as_int() == 1);
  EXPECT_EQ(bound[1], nullptr);
  EXPECT_TRUE(bound[2]->as_int() == 3);
  EXPECT_THROW(required("f", bound, 1), TemplateError);
  EXPECT_THROW(bind("f", arguments, {"c"}), TemplateError);       // c twice
  EXPECT_THROW(bind("f", arguments, {"a", "b"}), TemplateError);  // no c
  EXPECT_THROW(bind("f", arguments, {}), TemplateError);          // too many
}

}  // namespace
}  // namespace nibble::text::jinja
