#include "text/parse/reasoning.h"

#include <gtest/gtest.h>

namespace nibble::text {
namespace {

// Splits the text given in pieces of `size` bytes.
ReasoningParts split(std::string_view text, bool starts_inside, size_t size) {
  ReasoningSplitter splitter(starts_inside);
  ReasoningParts all;
  for (size_t at = 0; at < text.size(); at += size) {
    const ReasoningParts parts = splitter.push(text.substr(at, size));
    all.reasoning += parts.reasoning;
    all.content += parts.content;
  }
  const ReasoningParts rest = splitter.finish();
  return {all.reasoning + rest.reasoning, all.content + rest.content};
}

TEST(Reasoning, EveryTranscriptSplitsTheSameInPiecesOfAnySize) {
  const struct {
    const char* text;
    bool starts_inside;
    const char* reasoning;
    const char* content;
  } kCases[] = {
      {"<think>\nLet me see.\n</think>\n\nFour.", false, "Let me see.", "Four."},
      {"Let me see.\n</think>\n\nFour.", true, "Let me see.", "Four."},
      {"<think>\nagain\n</think>\nx", true, "again", "x"},
      {"<think> <think>a</think>b", false, "<think>a", "b"},
      {"<think> <think>a</think>b", true, "<think>a", "b"},
      {"Four. <think>", false, "", "Four. <think>"},
      {"  Four.", false, "", "  Four."},
      {"<think>\n\n</think>\n\nFour.", false, "", "Four."},
      {"<think>a < b </ c", false, "a < b </ c", ""},
      {"still thinking", true, "still thinking", ""},
      {"<thin", false, "", "<thin"},
      {"<think>a</think>b</think>", false, "a", "b</think>"},
      {"", false, "", ""},
      {"", true, "", ""},
      {"a  \n b </think>", true, "a  \n b", ""},
  };
  for (const auto& test : kCases) {
    for (const size_t size : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{1000}}) {
      const ReasoningParts parts = split(test.text, test.starts_inside, size);
      EXPECT_EQ(parts.reasoning, test.reasoning) << test.text << " by " << size;
      EXPECT_EQ(parts.content, test.content) << test.text << " by " << size;
    }
  }
}

TEST(Reasoning, WhatIsFinalComesAtOnce) {
  ReasoningSplitter splitter(true);
  EXPECT_EQ(splitter.push("one two").reasoning, "one two");
  EXPECT_EQ(splitter.push(" three <").reasoning, " three");
  EXPECT_EQ(splitter.push("4").reasoning, " <4");
  EXPECT_EQ(splitter.push("</think>x").content, "x");
}

}  // namespace
}  // namespace nibble::text
