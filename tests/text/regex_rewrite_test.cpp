#include <gtest/gtest.h>

#include "text/tokenizer/regex.h"

namespace nibble::text {
namespace {

std::string rewritten(std::string_view pattern) {
  const auto result = rewrite_onig_pattern(pattern, "pattern");
  return result ? *result : "refused: " + result.error().message;
}

TEST(RegexRewrite, WhatBothReadAlikeStaysAsItIs) {
  for (const std::string_view pattern :
       {R"(\p{L}+| ?[^\r\n\p{N}]{1,3}(?!x)$)", R"((?i:'s|'t)a?b*+)", R"([[:alpha:]]\\\[)"}) {
    EXPECT_EQ(rewritten(pattern), pattern);
  }
}

TEST(RegexRewrite, RepeatedIntervalsAreNestedAndNotPossessive) {
  EXPECT_EQ(rewritten(R"(a\p{N}{1,3}+)"), R"(a(?:\p{N}{1,3})+)");
  EXPECT_EQ(rewritten("(ab){2}+c"), "(?:(ab){2})+c");
  EXPECT_EQ(rewritten("a{,3}"), "a{0,3}");
  EXPECT_EQ(rewritten("a{x"), "a\\{x");
}

TEST(RegexRewrite, RubyMeaningsAreKept) {
  EXPECT_EQ(rewritten("(?m:.)"), "(?s:.)");
  EXPECT_EQ(rewritten(R"(\h)"), "[0-9a-fA-F]");
  EXPECT_EQ(rewritten(R"(\d\D)"), R"(\p{Nd}\P{Nd})");
  EXPECT_EQ(rewritten(R"(\p{Han}\p{^L}\p{Letter})"), R"(\p{sc:Han}\P{L}\p{L})");
  EXPECT_EQ(rewritten("\\u00e9"), R"(\x{00e9})");
  EXPECT_EQ(rewritten("[a[bc]d]"), "[abcd]");
}

TEST(RegexRewrite, WhatCannotBeTranslatedIsRefusedByName) {
  EXPECT_NE(rewritten("[a&&b]").find("&&"), std::string::npos);
  EXPECT_NE(rewritten("[a[^b]]").find("negated"), std::string::npos);
  EXPECT_NE(rewritten(R"([\W])").find("\\W"), std::string::npos);
  EXPECT_NE(rewritten("[ab").find("unclosed"), std::string::npos);
  EXPECT_NE(rewritten("a\\").find("backslash"), std::string::npos);
  EXPECT_NE(rewritten(std::string(300, '(')).find("nested"), std::string::npos);
}

}  // namespace
}  // namespace nibble::text
