// Finds tool calls in generated text, one dialect a file. Works on text as it is generated: content
// passes through, what may be a call is held back until it is whole. What looks like a call and is
// none is content, to the last byte.
// One object a sequence, one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/value.hpp>

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

// What dialects without types in their text need to know of the tools: which parameters are
// anything but text.
class ToolSchemas {
 public:
  ToolSchemas() = default;
  // OpenAI's `tools`, an array; what is not in the usual form is passed over.
  explicit ToolSchemas(const boost::json::value& tools);
  // True as well for functions, parameters and types that are not known.
  bool is_text(std::string_view function, std::string_view parameter) const;

 private:
  std::map<std::string, std::set<std::string, std::less<>>, std::less<>> typed_;  // by function
};

// The dialects by upstream's names, tool_call_list.cpp. Null: no such dialect.
std::unique_ptr<ToolCallParser> make_tool_call_parser(std::string_view name,
                                                      ToolSchemas schemas = {});
std::span<const std::string_view> tool_call_parser_names();
// The text that announces a call: a vocabulary may have it as a special token. "" for no dialect.
std::string_view tool_call_marker(std::string_view name);

constexpr std::string_view kHermesMarker = "<tool_call>";
constexpr std::string_view kLlama3Marker = "<|python_tag|>";
constexpr std::string_view kDeepseekMarker = "<｜tool▁calls▁begin｜>";

// hermes.cpp: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, also Qwen's.
std::unique_ptr<ToolCallParser> make_hermes_parser();
// llama3.cpp: {"name": ..., "parameters": {...}}, alone or several with ; between, maybe behind
// <|python_tag|>.
std::unique_ptr<ToolCallParser> make_llama3_parser();
// qwen3_coder.cpp: <tool_call><function=...><parameter=...>; also Qwen3.5's and Nemotron 3's.
std::unique_ptr<ToolCallParser> make_qwen3_coder_parser(ToolSchemas schemas);
// deepseek.cpp: DeepSeek V3, R1 and V3.1.
std::unique_ptr<ToolCallParser> make_deepseek_parser();

// One call of the form {"name": string, "arguments" or "parameters": object}.
std::optional<ToolCall> parse_tool_call(std::string_view json);

// Within this server's limits of depth and size; nullopt for anything else.
std::optional<boost::json::value> parse_json_value(std::string_view json);
std::string json_text(const boost::json::value& value);  // spaced as json.dumps does

}  // namespace nibble::text
