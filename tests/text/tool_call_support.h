// Feeds transcripts to a tool-call parser in pieces.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <string_view>

#include "text/parse/tool_call.h"

namespace nibble::text {

// Every piece of what a transcript gives, as "content|name(arguments)|name(arguments)".
class ParsedCalls {
 public:
  void add(const ToolCallParts& parts) {
    content_ += parts.content;
    for (const ToolCall& call : parts.calls) {
      calls_ += "|" + call.name + "(" + call.arguments + ")";
    }
  }
  std::string text() const { return content_ + calls_; }

 private:
  std::string content_;
  std::string calls_;
};

// In pieces of `size` bytes.
inline std::string parsed_calls(std::string_view dialect,
                                std::string_view text,
                                size_t size,
                                const ToolSchemas& schemas = {}) {
  const auto parser = make_tool_call_parser(dialect, schemas);
  ParsedCalls parsed;
  for (size_t at = 0; at < text.size(); at += size) {
    parsed.add(parser->push(text.substr(at, size)));
  }
  parsed.add(parser->finish());
  return parsed.text();
}

// In pieces of random sizes, empty ones too.
inline std::string parsed_in_random_pieces(std::string_view dialect,
                                           std::string_view text,
                                           std::mt19937& random,
                                           const ToolSchemas& schemas = {}) {
  const auto parser = make_tool_call_parser(dialect, schemas);
  ParsedCalls parsed;
  for (size_t at = 0; at < text.size();) {
    const size_t size = std::min<size_t>(random() % 9, text.size() - at);
    parsed.add(parser->push(text.substr(at, size)));
    at += size;
  }
  parsed.add(parser->finish());
  return parsed.text();
}

}  // namespace nibble::text
