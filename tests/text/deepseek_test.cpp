#include <gtest/gtest.h>

#include "text/tool_call_support.h"

namespace nibble::text {
namespace {

std::string v31(const std::string& name, const std::string& arguments) {
  return "<｜tool▁call▁begin｜>" + name + "<｜tool▁sep｜>" + arguments + "<｜tool▁call▁end｜>";
}

std::string v3(const std::string& name, const std::string& arguments) {
  return v31("function", name + "\n```json\n" + arguments + "\n```");
}

std::string calls(const std::string& inside) {
  return "<｜tool▁calls▁begin｜>" + inside + "<｜tool▁calls▁end｜>";
}

TEST(Deepseek, EveryTranscriptParsesTheSameInPiecesOfAnySize) {
  const std::string no_arguments = calls(v31("f", "[1]"));
  const std::string no_calls = "a " + calls("");
  const struct {
    std::string text;
    std::string expected;
  } kCases[] = {
      {"Just text.", "Just text."},
      {"I look.\n" + calls(v31("f", R"({"x":1.5,"s":"é"})")), R"(I look.|f({"x": 1.5, "s": "é"}))"},
      {calls(v31("f", "{}") + "\n" + v31("g", R"({"a": ["```"]})")), R"(|f({})|g({"a": ["```"]}))"},
      {calls(v3("f", R"({"x": 1})") + "\n" + v3("g", "{}")), R"(|f({"x": 1})|g({}))"},
      {"<｜tool▁calls▁begin｜>" + v31("f", "{}"), "|f({})"},  // the end marker may be missing
      {no_arguments, no_arguments},
      {no_calls, no_calls},
      {calls("oops"), calls("oops")},
      {calls(v31("", "{}")), calls(v31("", "{}"))},
      {"x <｜tool▁ca", "x <｜tool▁ca"},
  };
  for (const auto& test : kCases) {
    for (const size_t size : {size_t{1}, size_t{3}, size_t{8}, size_t{1000}}) {
      EXPECT_EQ(parsed_calls("deepseekv31", test.text, size), test.expected) << test.text << size;
    }
  }
}

}  // namespace
}  // namespace nibble::text
