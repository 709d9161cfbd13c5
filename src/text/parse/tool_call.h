// Finds tool calls in generated text, one dialect a file. Works on text as it is generated: content
// passes through, what may be a call is held back until it is whole. What looks like a call and is
// none is content, to the last byte.
// One object a sequence, one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object as text, spaced as json.dumps does
};

struct ToolCallParts {
  std::string content;
  std::vector<ToolCall> calls;
};

class ToolCallParser {
 public:
  virtual ~ToolCallParser() = default;
  virtual ToolCallParts push(std::string_view text) = 0;  // what became final
  virtual ToolCallParts finish() = 0;                     // the rest
};

// The dialects by name, tool_call_list.cpp. Null: no such dialect.
std::unique_ptr<ToolCallParser> make_tool_call_parser(std::string_view name);
std::span<const std::string_view> tool_call_parser_names();

// hermes.cpp: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, also Qwen's.
std::unique_ptr<ToolCallParser> make_hermes_parser();
// llama3.cpp: {"name": ..., "parameters": {...}}, alone or several with ; between, maybe behind
// <|python_tag|>.
std::unique_ptr<ToolCallParser> make_llama3_parser();

// One call of the form {"name": string, "arguments" or "parameters": object}.
std::optional<ToolCall> parse_tool_call(std::string_view json);

}  // namespace nibble::text
