// The text of a chat answer taken apart: reasoning, content, tool calls. One object a sequence;
// what it gives for a text does not depend on the pieces in which the text comes, so that a stream
// and a whole answer agree. One thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/parse/reasoning.h"
#include "text/parse/tool_call.h"

namespace nibble::server {

// What one request wants taken apart.
struct ChatParsing {
  bool reasoning = false;
  bool begins_with_reasoning = false;
  bool stream_reasoning = true;  // else it comes in one piece, when it has ended
  std::string tool_dialect;      // empty: tool calls stay in the text
  text::ToolSchemas tool_schemas;
  bool one_call = false;  // later calls are dropped
};

struct ChatDelta {
  std::string reasoning;
  std::string content;
  std::vector<text::ToolCall> calls;

  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
  void append(ChatDelta&& more);
};

class ChatMessage {
 public:
  explicit ChatMessage(const ChatParsing& parsing);

  ChatDelta push(std::string_view text);           // what became final
  ChatDelta finish();                              // the rest
  size_t num_calls() const { return num_calls_; }  // given so far

 private:
  void add_content(std::string_view text, ChatDelta& delta);
  void add_calls(text::ToolCallParts&& parts, ChatDelta& delta);
  void release_reasoning(bool last, ChatDelta& delta);

  std::optional<text::ReasoningSplitter> reasoning_;
  std::unique_ptr<text::ToolCallParser> calls_;
  bool stream_reasoning_;
  bool one_call_;
  std::string held_reasoning_;
  size_t num_calls_ = 0;
};

// Names of flags; empty: none. An unknown one is an error that lists the known ones.
Result<void> check_parser_names(std::string_view reasoning_parser,
                                std::string_view tool_call_parser);

}  // namespace nibble::server
