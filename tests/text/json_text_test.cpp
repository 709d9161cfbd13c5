#include <gtest/gtest.h>

#include "text/template_support.h"

namespace nibble::text {
namespace {

constexpr char kValue[] = R"({"v": {"b": [1, 2.0, true, null], "a": "é\"\n\u0001<", "e": {}}})";

TEST(JsonText, PrintsWithPythonsDefaultSeparators) {
  EXPECT_EQ(shown("v | tojson", kValue),
            "{\"b\": [1, 2.0, true, null], \"a\": \"\xC3\xA9\\\"\\n\\u0001<\", \"e\": {}}");
}

TEST(JsonText, IndentBreaksLinesAndEmptyContainersStayShort) {
  EXPECT_EQ(shown("{'a': [1], 'b': []} | tojson(indent=2)"),
            "{\n  \"a\": [\n    1\n  ],\n  \"b\": []\n}");
}

TEST(JsonText, OptionsAreJsonDumpss) {
  EXPECT_EQ(shown("v.a | tojson(ensure_ascii=true)", kValue), "\"\\u00e9\\\"\\n\\u0001<\"");
  EXPECT_EQ(shown("'\xF0\x9F\x99\x82' | tojson(true)"), "\"\\ud83d\\ude42\"");
  EXPECT_EQ(shown("{'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':'))"),
            R"({"a":2,"b":1})");
  EXPECT_EQ(shown("{1: 2, true: 3, none: 4} | tojson"), R"({"1": 3, "null": 4})");
}

TEST(JsonText, WhatJsonLacksIsAnError) {
  EXPECT_EQ(shown("x | tojson"), "error: Object of type Undefined is not JSON serializable");
  EXPECT_TRUE(is_error(shown("range(3) | tojson")));
  EXPECT_TRUE(is_error(shown("{(1, 2): 1} | tojson")));
}

}  // namespace
}  // namespace nibble::text
