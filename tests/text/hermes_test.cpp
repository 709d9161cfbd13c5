#include <gtest/gtest.h>

#include "text/tool_call_support.h"

namespace nibble::text {
namespace {

TEST(Hermes, EveryTranscriptParsesTheSameInPiecesOfAnySize) {
  const struct {
    const char* text;
    const char* expected;
  } kCases[] = {
      {"Just text.", "Just text."},
      {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1.5, \"s\": "
       "\"\xC3\xA9\"}}\n</tool_call>",
       "|f({\"x\": 1.5, \"s\": \"\xC3\xA9\"})"},
      {"I look.\n<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>\n"
       "<tool_call>\n{\"name\":\"g\",\"parameters\":{\"a\":[1,2]}}\n</tool_call>",
       "I look.|f({})|g({\"a\": [1, 2]})"},
      {"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}", "|f({})"},  // no end marker
      {"a <tool_call>oops</tool_call> b", "a <tool_call>oops</tool_call> b"},
      {"<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>",
       "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>"},
      {"x <tool_ca", "x <tool_ca"},
      {"1 < 2 <tool> ", "1 < 2 <tool> "},
      {"", ""},
  };
  for (const auto& test : kCases) {
    for (const size_t size : {size_t{1}, size_t{3}, size_t{8}, size_t{1000}}) {
      EXPECT_EQ(parsed_calls("hermes", test.text, size), test.expected) << test.text << size;
    }
  }
}

TEST(Hermes, ContentIsNotHeldBackLongerThanNeeded) {
  const auto parser = make_hermes_parser();
  EXPECT_EQ(parser->push("Hello there").content, "Hello there");
  EXPECT_EQ(parser->push(" <").content, "");
  EXPECT_EQ(parser->push("b>").content, " <b>");
}

}  // namespace
}  // namespace nibble::text
