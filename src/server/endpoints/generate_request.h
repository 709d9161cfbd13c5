// The body of POST /generate. A pure function of the body and the limits.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "server/request_fields.h"

namespace nibble::server {

struct GenerateRequest {
  Prompts prompts;
  std::string prompt_field;                      // "text" or "input_ids"
  std::vector<Sampling> sampling;                // one a prompt, all with the same n
  std::vector<engine::LogprobOptions> logprobs;  // one a prompt
  std::vector<std::string> rids;                 // one a prompt, or none
  std::string extra_key;                         // of the prefix cache
  bool text_in_logprobs = false;
  bool return_prompt_token_ids = false;
  bool stream = false;
  std::optional<int64_t> stream_interval;
};

Result<GenerateRequest> parse_generate_request(std::string_view body, const RequestLimits& limits);

}  // namespace nibble::server
