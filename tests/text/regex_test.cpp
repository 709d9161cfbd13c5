#include "text/tokenizer/regex.h"

#include <vector>

#include <gtest/gtest.h>

#include "support/present.h"

namespace nibble::text {
namespace {

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  auto regex = Regex::compile(pattern, "pattern");
  if (!regex) {
    ADD_FAILURE() << regex.error().text();
    return {};
  }
  RegexMatcher matcher(*regex);
  matcher.reset(text);
  std::vector<std::string> found;
  while (const auto match = matcher.next()) {
    found.push_back(text.substr(match->begin, match->end - match->begin));
  }
  return found;
}

using Strings = std::vector<std::string>;

TEST(Regex, FindsLeftmostFirstMatchesWithLookahead) {
  EXPECT_EQ(matches(R"(a|ab)", "ab"), (Strings{"a"}));
  EXPECT_EQ(matches(R"(\s+(?!\S)|\s+)", "a   b"), (Strings{"  ", " "}));
}

TEST(Regex, AnEmptyMatchAfterAMatchIsSkipped) {
  EXPECT_EQ(matches("x*", "axb"), (Strings{"", "x", ""}));
}

TEST(Regex, SpacesAreTheWhiteSpacePropertyWithoutTheMongolianSeparator) {
  EXPECT_EQ(matches(R"(\s)", "\xE3\x80\x80").size(), 1U);
  EXPECT_EQ(matches(R"(\s)", "\xE1\xA0\x8E").size(), 0U);
  EXPECT_EQ(matches(R"([^\S\n])", " \n\t").size(), 2U);
}

TEST(Regex, ALiteralMatchesItsTextAndNothingElse) {
  auto regex = Regex::literal("a.b\n(", "pattern");
  ASSERT_TRUE(regex) << regex.error().text();
  RegexMatcher matcher(*regex);
  matcher.reset("axb\n(a.b\n(");
  EXPECT_EQ(test::present(matcher.next()).begin, 5U);
  EXPECT_FALSE(matcher.next());
}

TEST(Regex, ABadPatternIsRefusedWithItsPath) {
  const auto regex = Regex::compile("a(b", "tokenizer.json.pattern");
  ASSERT_FALSE(regex);
  EXPECT_EQ(regex.error().where, "tokenizer.json.pattern");
  EXPECT_NE(regex.error().message.find("does not compile"), std::string::npos);
}

TEST(Regex, ExponentialPatternsStopAtTheWorkLimit) {
  EXPECT_TRUE(matches("(a*)*b", std::string(40, 'a')).empty());
}

}  // namespace
}  // namespace nibble::text
