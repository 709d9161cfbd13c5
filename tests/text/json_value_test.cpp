#include "text/template/json_value.h"

#include <gtest/gtest.h>

#include "text/template/format.h"

namespace nibble::text::jinja {
namespace {

TEST(JsonValue, EveryKindKeepsItsTypeAndOrder) {
  uint64_t bytes = 0;
  const Value value =
      from_json(boost::json::parse(
                    R"({"b": [1, -2, 18446744073709551615, 1.5, true, null], "a": {"k": "v"}})"),
                bytes);
  Budget budget(0);
  std::string text;
  append_repr(value, text, budget);
  EXPECT_EQ(text, "{'b': [1, -2, 18446744073709551615, 1.5, True, None], 'a': {'k': 'v'}}");
  EXPECT_GT(bytes, 100U);
}

TEST(JsonValue, BadUtf8IsRepairedAndDeepNestingRefused) {
  uint64_t bytes = 0;
  EXPECT_EQ(from_json(boost::json::value("a\xFF"), bytes).str(), "a\xEF\xBF\xBD");
  boost::json::value deep = boost::json::array();
  for (int i = 0; i < 2000; ++i) {
    deep = boost::json::array{std::move(deep)};
  }
  EXPECT_THROW(from_json(deep, bytes), TemplateError);
}

}  // namespace
}  // namespace nibble::text::jinja
