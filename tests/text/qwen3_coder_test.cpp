#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "text/tool_call_support.h"

namespace nibble::text {
namespace {

ToolSchemas schemas() {
  return ToolSchemas(boost::json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
          "properties": {"text": {"type": "string"}, "count": {"type": "integer"},
                         "list": {"type": "array"}, "flag": {"type": "boolean"},
                         "maybe": {"type": ["string", "null"]}}}}}])"));
}

std::string call(const std::string& inside) {
  return "<tool_call>\n<function=f>\n" + inside + "</function>\n</tool_call>";
}

std::string parameter(const std::string& name, const std::string& value) {
  return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
}

TEST(Qwen3Coder, EveryTranscriptParsesTheSameInPiecesOfAnySize) {
  const struct {
    std::string text;
    const char* expected;
  } kCases[] = {
      {"Just text.", "Just text."},
      {call(""), "|f({})"},
      {"I look.\n\n" + call(parameter("text", "12")), "I look.|f({\"text\": \"12\"})"},
      {call(parameter("count", "12") + parameter("list", "[1, \"a\"]")),
       "|f({\"count\": 12, \"list\": [1, \"a\"]})"},
      {call(parameter("flag", "True") + parameter("maybe", "null")),
       "|f({\"flag\": true, \"maybe\": null})"},
      {call(parameter("maybe", "as text")), "|f({\"maybe\": \"as text\"})"},
      {call(parameter("count", "twelve")), "|f({\"count\": \"twelve\"})"},
      {call(parameter("text", "a\n b\n")), "|f({\"text\": \"a\\n b\\n\"})"},
      {call(parameter("text", "1 < 2 </function>")), "|f({\"text\": \"1 < 2 </function>\"})"},
      {call(parameter("other", "[1]")), "|f({\"other\": \"[1]\"})"},  // not in the schema: text
      {call("") + "\n" + call(parameter("count", "1")), "|f({})|f({\"count\": 1})"},
      {"<tool_call>\n<function=f>\n</function>", "|f({})"},  // the end marker may be missing
      {"<tool_call>\n<function=f>\n<parameter=text>\nx",
       "<tool_call>\n<function=f>\n"
       "<parameter=text>\nx"},
      {"<tool_call>\n<function=>\n</function>\n</tool_call>",
       "<tool_call>\n<function=>\n</function>\n</tool_call>"},
      {"<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
       "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"},
  };
  for (const auto& test : kCases) {
    for (const size_t size : {size_t{1}, size_t{3}, size_t{8}, size_t{1000}}) {
      EXPECT_EQ(parsed_calls("qwen3_coder", test.text, size, schemas()), test.expected)
          << test.text << size;
    }
  }
}

}  // namespace
}  // namespace nibble::text
