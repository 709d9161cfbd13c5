// Feeds transcripts to a tool-call parser in pieces.
#pragma once

#include <string>
#include <string_view>

#include "text/parse/tool_call.h"

namespace nibble::text {

// "content|name(arguments)|name(arguments)"
inline std::string parsed_calls(std::string_view dialect, std::string_view text, size_t size) {
  const auto parser = make_tool_call_parser(dialect);
  std::string content;
  std::string calls;
  const auto add = [&](const ToolCallParts& parts) {
    content += parts.content;
    for (const ToolCall& call : parts.calls) {
      calls += "|" + call.name + "(" + call.arguments + ")";
    }
  };
  for (size_t at = 0; at < text.size(); at += size) {
    add(parser->push(text.substr(at, size)));
  }
  add(parser->finish());
  return content + calls;
}

}  // namespace nibble::text
