// The fields that generation requests share, read from JSON with errors that name the field. Pure
// functions of the body and the limits: no engine, no tokenizer, no clock (a fuzz target calls
// them).
//
// Unknown fields are ignored, as upstream does; known ones of a wrong type or range are refused;
// fields that would change the answer and are not implemented are refused by name.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "engine/request.h"
#include "server/config.h"
#include "server/text_stream.h"

namespace nibble::server {

struct RequestLimits {
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  int64_t max_sequences = 1024;  // prompts times n of one request
  // Alternatives a position, and tokens asked for by id: each costs some hundred bytes of answer a
  // position. OpenAI's limits are 20 and 5.
  int64_t max_logprobs = 1000;
  int64_t top_logprobs() const { return std::min(vocab_size, max_logprobs); }
  bool has_tokenizer = true;
  SamplingDefaults defaults;  // of chat requests
};

using TokenIds = std::vector<int32_t>;
using Prompt = std::variant<std::string, TokenIds>;

struct Sampling {
  engine::SamplingParams params;          // max_new_tokens and seed not yet filled in
  std::optional<int64_t> max_new_tokens;  // nullopt: up to the context length
  std::optional<uint64_t> seed;           // nullopt: random
  int64_t n = 1;
  TextOptions text;
};

// extra_key or cache_salt; "" when absent.
Result<std::string> read_extra_key(const JsonObject& body);

// Which names and defaults the fields have.
enum class SamplingDialect : uint8_t { Native, Completions, Chat };
Result<Sampling> read_sampling(const JsonObject& fields,
                               SamplingDialect dialect,
                               const RequestLimits& limits);

// A body: parsed, and an object.
Result<boost::json::value> parse_body(std::string_view body);

Result<TokenIds> read_token_ids(const boost::json::value& value,
                                const std::string& path,
                                const RequestLimits& limits);
// A string, a list of strings, a list of ids or a list of lists of ids. `batch`: it was a list of
// prompts.
struct Prompts {
  std::vector<Prompt> prompts;
  bool batch = false;
};
Result<Prompts> read_prompts(const boost::json::value& value,
                             const std::string& path,
                             const RequestLimits& limits);

// Refuses fields (present, not null, not false, not empty) that this server does not implement.
Result<void> refuse_fields(const JsonObject& fields, std::span<const std::string_view> names);

// In [low, high], or the fallback when absent or null.
Result<int64_t> int_in_range(
    const JsonObject& fields, std::string_view key, int64_t fallback, int64_t low, int64_t high);

}  // namespace nibble::server
