#include "base/json.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST(Json, ReadsTypedFieldsAndNamesThePathOfAWrongOne) {
  const auto value = *parse_json(R"({"a":{"n":3,"f":2.0,"s":"x","h":2.5,"b":true,"z":null}})", "t");
  const auto root = *JsonObject::from(value, "config");
  const auto a = *root.get_object("a");
  EXPECT_EQ(*a.get_int("n"), 3);
  EXPECT_EQ(*a.get_int("f"), 2);
  EXPECT_EQ(*a.get_string("s"), "x");
  EXPECT_EQ(*a.get_double("n"), 3.0);
  EXPECT_TRUE(*a.get_bool("b"));
  EXPECT_EQ(*a.find_int("z"), std::nullopt);
  EXPECT_EQ(*a.find_int("absent"), std::nullopt);
  EXPECT_EQ(a.get_int("h").error().where, "config.a.h");
  EXPECT_THAT(a.get_int("s").error().message, HasSubstr("expected an integer, found a string"));
  EXPECT_THAT(a.get_int("absent").error().message, HasSubstr("missing"));
  EXPECT_FALSE(a.find_bool("n").has_value());
}

TEST(Json, AcceptsPythonsSpecialNumbersOutsideStringsOnly) {
  const auto value =
      *parse_json(R"({"a":[0.0, Infinity],"b":NaN,"c":"Infinity","d":-Infinity})", "t");
  const auto root = *JsonObject::from(value, "");
  EXPECT_TRUE(std::isnan(*root.get_double("b")));
  EXPECT_EQ(*root.get_double("d"), -INFINITY);
  EXPECT_EQ(*root.get_string("c"), "Infinity");
  EXPECT_FALSE(parse_json("{\"a\": Infinit}", "t").has_value());

  // Each costs far more as a value than as text: only as many as a config may have.
  const auto list = [](size_t count) {
    std::string text = "[NaN";
    for (size_t i = 1; i < count; ++i) {
      text += ",NaN";
    }
    return text + "]";
  };
  EXPECT_TRUE(parse_json(list(4096), "t").has_value());
  EXPECT_THAT(parse_json(list(4097), "t").error().message, HasSubstr("not valid JSON"));
}

TEST(Json, RefusesBrokenDeepAndOversizedText) {
  EXPECT_FALSE(parse_json("{\"a\":1", "t").has_value());
  EXPECT_FALSE(parse_json("{} x", "t").has_value());
  EXPECT_FALSE(parse_json(std::string(100, '['), "t").has_value());
  EXPECT_EQ(parse_json("[1,2,3]", "t", {.max_bytes = 3}).error().code, ErrorCode::TooLarge);
}

TEST(Json, FormatsNumbersForPeople) {
  EXPECT_EQ(format_number(2.5), "2.5");
  EXPECT_EQ(format_number(1e-5), "1e-05");
  EXPECT_EQ(format_number(3), "3");
}

}  // namespace
}  // namespace nibble
