// Random transcripts in random pieces: what a parser gives must not depend on the pieces, and what
// is no call must come back to the last byte.
#include "text/parse/tagged.h"

#include <gtest/gtest.h>

#include "text/tool_call_support.h"

namespace nibble::text {
namespace {

// Text of whole, broken and half calls, markers and white space.
std::string random_transcript(std::mt19937& random) {
  static const char* const kParts[] = {
      "a",
      " ",
      "\n",
      "<",
      "{",
      "}",
      ";",
      "\xC3\xA9",
      "<tool_call>",
      "</tool_call>",
      "<function=f>",
      "</function>",
      "<parameter=p>",
      "</parameter>",
      "<|python_tag|>",
      "<｜tool▁calls▁begin｜>",
      "<｜tool▁calls▁end｜>",
      "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
      R"({"name": "f", "arguments": {"x": [1, "}"]}})",
      R"({"name": "g", "parameters": {}})",
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
      "<tool_call>\n<function=f>\n<parameter=p>\n1\n</parameter>\n</function>\n</tool_call>",
  };
  std::string text;
  for (size_t i = random() % 12; i > 0; --i) {
    text += kParts[random() % std::size(kParts)];
  }
  return text;
}

TEST(ToolCallParsers, GiveTheSameForRandomTranscriptsInRandomPieces) {
  std::mt19937 random(1);
  size_t with_calls = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string text = random_transcript(random);
    for (const std::string_view name : tool_call_parser_names()) {
      const std::string whole = parsed_calls(name, text, text.size() + 1);
      EXPECT_EQ(parsed_in_random_pieces(name, text, random), whole) << name << ": " << text;
      with_calls += whole.find("|f(") != std::string::npos ? 1 : 0;
    }
  }
  EXPECT_GT(with_calls, 500U);  // the transcripts do test calls
}

TEST(TaggedParser, GivesBackWhatIsNoCallToTheLastByte) {
  TaggedParser parser("<a>", "</a>", [](std::string_view body) {
    return body == "yes" ? std::optional(std::vector<ToolCall>{{"f", "{}"}}) : std::nullopt;
  });
  ParsedCalls parsed;
  for (const char* piece : {"x \n<a>n", "o</a", "> <a>yes</a>\n", " y <a> no"}) {
    parsed.add(parser.push(piece));
  }
  parsed.add(parser.finish());
  // White space beside a call belongs to nothing.
  EXPECT_EQ(parsed.text(), "x \n<a>no</a>\n y <a> no|f({})");
}

}  // namespace
}  // namespace nibble::text
