// The body of POST /v1/chat/completions. A pure function of the body and the limits.
#pragma once

#include <optional>
#include <string_view>

#include <boost/json.hpp>

#include "server/openai_json.h"
#include "server/request_fields.h"

namespace nibble::server {

// What a chat template is given. Contents are plain strings: text parts are joined.
struct ChatPrompt {
  boost::json::value messages = boost::json::array{};
  std::optional<boost::json::value> tools;  // an array
  boost::json::object template_kwargs;
  bool add_generation_prompt = true;
  std::string continued;  // continue_final_message: the answer goes on from here
};

struct ChatRequest {
  OpenAiOptions options;
  ChatPrompt prompt;
  std::optional<TokenIds> input_ids;  // instead of the rendered messages
  Sampling sampling;
  bool separate_reasoning = true;
  bool stream_reasoning = true;
  bool parallel_tool_calls = true;
  bool logprobs = false;
  int64_t top_logprobs = 0;
};

Result<ChatRequest> parse_chat_request(std::string_view body, const RequestLimits& limits);

// The fields of `body` that make the prompt; also used by /tokenize.
Result<ChatPrompt> read_chat_prompt(const JsonObject& body);

}  // namespace nibble::server
