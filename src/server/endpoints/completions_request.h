// The body of POST /v1/completions. A pure function of the body and the limits.
#pragma once

#include <optional>
#include <string_view>

#include "server/openai_json.h"
#include "server/request_fields.h"

namespace nibble::server {

struct CompletionRequest {
  OpenAiOptions options;
  Prompts prompts;
  Sampling sampling;
  bool echo = false;                // the answer begins with the prompt
  std::optional<int64_t> logprobs;  // alternatives a position; nullopt: no logprobs
};

Result<CompletionRequest> parse_completion_request(std::string_view body,
                                                   const RequestLimits& limits);

}  // namespace nibble::server
