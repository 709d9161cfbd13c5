#include "server/text_stream.h"

#include <gtest/gtest.h>

#include "server/server_fixture.h"

namespace nibble::server {
namespace {

// Feeds `text` in pieces of `size` bytes; returns the final text.
std::string feed(const std::string& text,
                 size_t size,
                 std::vector<std::string> stops,
                 bool keep = false,
                 std::string* matched = nullptr) {
  StopMatcher matcher(std::move(stops), keep);
  std::string out;
  bool stopped = false;
  for (size_t i = 0; i < text.size() && !stopped; i += size) {
    stopped = matcher.push(std::string_view(text).substr(i, size), out);
  }
  if (!stopped) {
    matcher.finish(out);
  }
  if (matched != nullptr) {
    *matched = matcher.matched();
  }
  return out;
}

TEST(StopMatcher, CutsAtTheFirstOccurrenceHoweverTheTextIsCutIntoPieces) {
  for (size_t size = 1; size < 20; ++size) {
    std::string matched;
    EXPECT_EQ(feed("one two STOP three STOP", size, {"STOP"}, false, &matched), "one two ");
    EXPECT_EQ(matched, "STOP");
    EXPECT_EQ(feed("one two STOP three", size, {"STOP"}, true), "one two STOP");
    EXPECT_EQ(feed("aaab and so on", size, {"aab"}), "a");
    EXPECT_EQ(feed("no match, ends in STO", size, {"STOP"}), "no match, ends in STO");
  }
}

TEST(StopMatcher, TakesTheEarliestOfSeveralAndTheLongestOfThoseThatBeginTogether) {
  for (size_t size : {size_t{1}, size_t{7}, size_t{100}}) {
    std::string matched;
    EXPECT_EQ(feed("x\n\nUser: y", size, {"User:", "\n\n"}, false, &matched), "x");
    EXPECT_EQ(matched, "\n\n");
  }
  std::string matched;
  EXPECT_EQ(feed("abcd", 4, {"b", "bc"}, false, &matched), "a");
  EXPECT_EQ(matched, "bc");
}

TEST(StopMatcher, HoldsBackOnlyWhatCanStillBecomeAStop) {
  StopMatcher matcher({"END"}, false);
  std::string out;
  EXPECT_FALSE(matcher.push("abE", out));
  EXPECT_EQ(out, "ab");
  EXPECT_FALSE(matcher.push("x", out));
  EXPECT_EQ(out, "abEx");
  EXPECT_FALSE(matcher.push("EN", out));
  EXPECT_EQ(out, "abEx");
  EXPECT_TRUE(matcher.push("D and more", out));
  EXPECT_EQ(out, "abEx");
  EXPECT_TRUE(matcher.push("more", out));
  EXPECT_EQ(out, "abEx");
}

TEST(StopMatcher, IgnoresEmptyStops) { EXPECT_EQ(feed("abc", 1, {"", "c"}), "ab"); }

TEST(TextStream, FindsStopsAcrossTokensAndNeverGivesHalfACharacter) {
  const text::Tokenizer tokenizer = test::make_byte_tokenizer();
  TextStream stream(&tokenizer, {{"é!"}, false, true});
  const std::string text = "café!";
  std::vector<std::string> seen;
  bool stopped = false;
  for (const char c : text) {
    stopped = stream.push(static_cast<unsigned char>(c));
    seen.push_back(stream.text());
  }
  EXPECT_TRUE(stopped);
  EXPECT_EQ(seen, (std::vector<std::string>{"c", "ca", "caf", "caf", "caf", "caf"}));
  EXPECT_EQ(stream.matched_stop(), "é!");
}

TEST(TextStream, GivesWhatItHeldWhenTheSequenceEnds) {
  const text::Tokenizer tokenizer = test::make_byte_tokenizer();
  TextStream stream(&tokenizer, {{"xyz"}, false, true});
  EXPECT_FALSE(stream.push('x'));
  EXPECT_EQ(stream.text(), "");
  stream.finish();
  EXPECT_EQ(stream.text(), "x");
  EXPECT_TRUE(stream.matched_stop().empty());
}

TEST(TextStream, WithoutATokenizerHasNoText) {
  TextStream stream(nullptr, {{"a"}, false, true});
  EXPECT_FALSE(stream.push('a'));
  stream.finish();
  EXPECT_EQ(stream.text(), "");
  EXPECT_FALSE(stream.decodes());
}

}  // namespace
}  // namespace nibble::server
