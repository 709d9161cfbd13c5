#include "text/parse/tool_call.h"

#include <gtest/gtest.h>

namespace nibble::text {
namespace {

TEST(ToolCall, EveryListedDialectCanBeMadeAndOthersCannot) {
  for (const std::string_view name : tool_call_parser_names()) {
    EXPECT_NE(make_tool_call_parser(name), nullptr) << name;
  }
  EXPECT_EQ(make_tool_call_parser("nope"), nullptr);
}

TEST(ToolCall, OnlyAnObjectWithANameAndArgumentsIsACall) {
  EXPECT_TRUE(parse_tool_call(R"({"name": "f", "arguments": {}})"));
  for (const char* text : {"",
                           "[]",
                           "{",
                           R"({"name": "f"})",
                           R"({"name": "f", "arguments": "{}"})",
                           R"({"arguments": {}})",
                           R"({"name": "f", "arguments": {}} x)"}) {
    EXPECT_FALSE(parse_tool_call(text)) << text;
  }
}

TEST(ToolCall, DeepArgumentsAreRefusedNotACrash) {
  std::string deep = R"({"name": "f", "arguments": {"a": )";
  deep += std::string(100'000, '[') + std::string(100'000, ']') + "}}";
  EXPECT_FALSE(parse_tool_call(deep));
}

}  // namespace
}  // namespace nibble::text
