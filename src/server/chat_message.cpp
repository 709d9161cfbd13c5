#include "server/chat_message.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

namespace nibble::server {

void ChatDelta::append(ChatDelta&& more) {
  reasoning += more.reasoning;
  content += more.content;
  std::move(more.calls.begin(), more.calls.end(), std::back_inserter(calls));
}

ChatMessage::ChatMessage(const ChatParsing& parsing)
    : stream_reasoning_(parsing.stream_reasoning), one_call_(parsing.one_call) {
  if (parsing.reasoning) {
    reasoning_.emplace(parsing.begins_with_reasoning);
  }
  if (!parsing.tool_dialect.empty()) {
    calls_ = text::make_tool_call_parser(parsing.tool_dialect, parsing.tool_schemas);
  }
}

ChatDelta ChatMessage::push(std::string_view text) {
  ChatDelta delta;
  if (!reasoning_) {
    add_content(text, delta);
    return delta;
  }
  text::ReasoningParts parts = reasoning_->push(text);
  held_reasoning_ += parts.reasoning;
  add_content(parts.content, delta);
  release_reasoning(!parts.content.empty(), delta);
  return delta;
}

ChatDelta ChatMessage::finish() {
  ChatDelta delta;
  if (reasoning_) {
    const text::ReasoningParts parts = reasoning_->finish();
    held_reasoning_ += parts.reasoning;
    add_content(parts.content, delta);
    release_reasoning(true, delta);
  }
  if (calls_) {
    add_calls(calls_->finish(), delta);
  }
  return delta;
}

void ChatMessage::release_reasoning(bool last, ChatDelta& delta) {
  if (stream_reasoning_ || last) {
    delta.reasoning += std::exchange(held_reasoning_, std::string());
  }
}

void ChatMessage::add_content(std::string_view text, ChatDelta& delta) {
  if (calls_) {
    add_calls(calls_->push(text), delta);
  } else {
    delta.content += text;
  }
}

void ChatMessage::add_calls(text::ToolCallParts&& parts, ChatDelta& delta) {
  delta.content += parts.content;
  for (text::ToolCall& call : parts.calls) {
    if (!one_call_ || num_calls_ == 0) {
      delta.calls.push_back(std::move(call));
      ++num_calls_;
    }
  }
}

namespace {

Result<void> check_name(std::string_view name,
                        std::span<const std::string_view> known,
                        std::string flag) {
  if (name.empty() || std::find(known.begin(), known.end(), name) != known.end()) {
    return {};
  }
  std::string list;
  for (const std::string_view one : known) {
    list += (list.empty() ? "" : ", ") + std::string(one);
  }
  return invalid("'" + std::string(name) + "' is not supported; known are " + list,
                 std::move(flag));
}

}  // namespace

Result<void> check_parser_names(std::string_view reasoning_parser,
                                std::string_view tool_call_parser) {
  TRY(check_name(reasoning_parser, text::reasoning_parser_names(), "--reasoning-parser"));
  return check_name(tool_call_parser, text::tool_call_parser_names(), "--tool-call-parser");
}

}  // namespace nibble::server
