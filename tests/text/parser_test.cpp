#include "text/template/parser.h"

#include <gtest/gtest.h>

#include "text/template_support.h"

namespace nibble::text {
namespace {

TEST(Parser, TagsThatAreMissingOrUnknownAreRefusedByName) {
  EXPECT_EQ(rendered("{% include 'x' %}"), "error: line 1: unknown or unsupported tag 'include'");
  EXPECT_EQ(rendered("{% if true %}x"),
            "error: line 1: unexpected end of template, expected 'endif'");
  EXPECT_EQ(rendered("{% endif %}"), "error: line 1: unknown or unsupported tag 'endif'");
  EXPECT_EQ(rendered("{% break %}"), "error: line 1: 'break' outside of a loop");
  EXPECT_TRUE(is_error(rendered("{% set true = 1 %}")));
  EXPECT_TRUE(is_error(rendered("{% macro m(a=1, b) %}{% endmacro %}")));
  EXPECT_TRUE(is_error(rendered("{% call x %}{% endcall %}")));
}

TEST(Parser, NestingIsLimited) {
  std::string deep;
  for (int i = 0; i < 5000; ++i) {
    deep += "{% if true %}";
  }
  EXPECT_TRUE(is_error(rendered(deep)));
  EXPECT_TRUE(is_error(shown(std::string(5000, '('))));
  EXPECT_TRUE(is_error(shown(std::string(5000, '['))));
  EXPECT_TRUE(is_error(shown(std::string(5000, '-') + "1")));
  std::string sum = "1";
  for (int i = 0; i < 5000; ++i) {
    sum += "+1";
  }
  EXPECT_TRUE(is_error(shown(sum)));
}

TEST(Parser, SourcesBeyondTheSizeLimitAreRefused) {
  const auto parsed = ChatTemplate::parse(std::string(2 << 20, 'a'), "", "");
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, ErrorCode::TooLarge);
}

}  // namespace
}  // namespace nibble::text
