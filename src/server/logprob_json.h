// Logprobs as the APIs show them. `tokenizer` may be null: then texts are null or empty.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "engine/request.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble::server {

// The text of one token, always valid UTF-8 (bytes of half a character become U+FFFD).
std::string token_string(const text::Tokenizer* tokenizer, int32_t token);

// JSON has no infinities: -inf becomes -9999, as OpenAI's; NaN becomes null.
boost::json::value logprob_number(float logprob);

// A run of reported positions and the tokens at them.
struct LogprobRun {
  std::span<const int32_t> tokens;
  std::span<const engine::PositionLogprobs> positions;  // as many as tokens
};

// SGLang: [[logprob or null, token id, text or null], ...]
boost::json::array native_token_logprobs(const text::Tokenizer* tokenizer,
                                         const LogprobRun& run,
                                         bool with_text);
// [[[logprob, id, text or null], ...] or null, ...] of the alternatives, or of the chosen ids.
enum class Extra : uint8_t { Top, Chosen };
boost::json::array native_extra_logprobs(const text::Tokenizer* tokenizer,
                                         const LogprobRun& run,
                                         Extra which,
                                         bool with_text);

// OpenAI completions: {tokens, token_logprobs, top_logprobs, text_offset}; runs are concatenated.
boost::json::object completion_logprobs(const text::Tokenizer* tokenizer,
                                        std::span<const LogprobRun> runs);

// OpenAI chat: [{token, bytes, logprob, top_logprobs}, ...]
boost::json::array chat_logprobs(const text::Tokenizer* tokenizer, const LogprobRun& run);

}  // namespace nibble::server
