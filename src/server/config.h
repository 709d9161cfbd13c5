// What the server was told: resolved flags, nothing that changes later.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <boost/json/object.hpp>

#include "server/http/http_server.h"

namespace nibble::server {

// What a chat request means where it says nothing: generation_config.json, or OpenAI's values.
struct SamplingDefaults {
  float temperature = 1.0f;
  float top_p = 1.0f;
  int32_t top_k = -1;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
};

struct ServerConfig {
  http::HttpConfig http;
  int num_text_threads = 2;
  std::string tokenizer_path;
  std::string served_model_name;  // empty: the path of the model
  std::string api_key;            // empty: open
  std::string admin_api_key;      // empty: as api_key
  SamplingDefaults sampling_defaults;
  std::string reasoning_parser;  // dialects of chat answers (chat_message.h); empty: as written
  std::string tool_call_parser;
  bool deterministic_seeds = false;  // requests without a seed get 42, as upstream's flag
  std::optional<uint64_t>
      random_seed;                     // where random seeds of requests start; else from the system
  bool incremental_streaming = false;  // /generate streams deltas instead of the whole text
  int64_t stream_interval = 1;         // tokens between two events of a stream
  double health_timeout_seconds = 20;
  double drain_timeout_seconds = 30;
  boost::json::object server_args;  // every resolved flag, for /server_info
};

}  // namespace nibble::server
