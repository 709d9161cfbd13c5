#include "text/tokenizer/added_tokens.h"

#include <gtest/gtest.h>

namespace nibble::text {
namespace {

AddedTokenMatcher::Entry entry(int32_t id, std::string content) {
  AddedToken token;
  token.id = id;
  token.content = content;
  return {std::move(content), token};
}

std::vector<std::pair<std::string, int32_t>> split(const AddedTokenMatcher& matcher,
                                                   std::string_view text) {
  std::vector<AddedTokenMatcher::Segment> segments;
  matcher.split(text, segments);
  std::vector<std::pair<std::string, int32_t>> out;
  for (const auto& segment : segments) {
    out.emplace_back(text.substr(segment.begin, segment.end - segment.begin), segment.id);
  }
  return out;
}

using Parts = std::vector<std::pair<std::string, int32_t>>;

TEST(AddedTokens, TheLongestTokenAtTheLeftmostPlaceWins) {
  const AddedTokenMatcher matcher({entry(1, "<a>"), entry(2, "<a><b>"), entry(3, "b>")});
  EXPECT_EQ(split(matcher, "x<a><b>b>"), (Parts{{"x", -1}, {"<a><b>", 2}, {"b>", 3}}));
  EXPECT_EQ(split(matcher, "<a><c"), (Parts{{"<a>", 1}, {"<c", -1}}));
  EXPECT_EQ(split(matcher, ""), Parts{});
}

TEST(AddedTokens, StrippingTokensSwallowTheSpaceBesideThem) {
  auto both = entry(1, "<m>");
  both.token.lstrip = true;
  both.token.rstrip = true;
  const AddedTokenMatcher matcher({both});
  EXPECT_EQ(split(matcher, "a \n<m>  b"), (Parts{{"a", -1}, {" \n<m>  ", 1}, {"b", -1}}));
}

TEST(AddedTokens, SingleWordsNeedWordBoundaries) {
  auto word = entry(1, "in");
  word.token.single_word = true;
  const AddedTokenMatcher matcher({word});
  EXPECT_EQ(split(matcher, "in bin-in"), (Parts{{"in", 1}, {" bin-", -1}, {"in", 1}}));
}

TEST(AddedTokens, NoTokensLeaveTheTextWhole) {
  EXPECT_EQ(split(AddedTokenMatcher(), "a b"), (Parts{{"a b", -1}}));
}

}  // namespace
}  // namespace nibble::text
