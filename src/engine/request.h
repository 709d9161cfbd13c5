// What a request asks of the engine and what it gets back: token ids, numbers and callbacks only.
// Text, JSON and HTTP stay in server; grammar masks come in through TokenMask.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace nibble::engine {

using RequestId = uint64_t;

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;
  int32_t top_k = -1;  // -1: all
  float min_p = 0.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  int32_t max_new_tokens = 128;
  int32_t min_new_tokens = 0;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids = {};
  std::vector<std::pair<int32_t, float>> logit_bias = {};
  uint64_t seed = 0;  // resolved by the server: never "random" here
};

// Which tokens may come next; one per request, called on the engine thread.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Fills one bit per token (bit t % 32 of word t / 32); false: everything is allowed.
  virtual bool fill(std::span<uint32_t> bits) = 0;
  virtual void accept(int32_t token) = 0;
};

struct TokenLogprob {
  float logprob = 0;
  int32_t token = 0;
};

struct LogprobOptions {
  bool output = false;                  // logprob of each generated token
  int64_t prompt_start = -1;            // >= 0: logprobs of prompt tokens from this position on
  int32_t top = 0;                      // alternatives per position
  std::vector<int32_t> token_ids = {};  // further tokens to report per position
};

// One reported position.
struct PositionLogprobs {
  std::optional<TokenLogprob> token;  // nullopt for position 0 of a prompt
  std::vector<TokenLogprob> top;
  std::vector<TokenLogprob> chosen;  // of LogprobOptions::token_ids
};

enum class FinishReason : uint8_t { None, Length, StopToken, StopString, Abort, Error };

// A step's news of one request, delivered on the engine thread: must not block.
struct Output {
  RequestId id = 0;
  std::vector<int32_t> tokens;                    // new since the last Output
  std::vector<PositionLogprobs> logprobs;         // of `tokens`, when asked
  std::vector<PositionLogprobs> prompt_logprobs;  // once, with the first Output, when asked
  FinishReason finish = FinishReason::None;
  int32_t matched_token = -1;  // StopToken: which
  Error error;                 // Error and Abort: why
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t num_retractions = 0;
  std::string weight_version;  // of the weights that computed `tokens`
  // When cached_tokens may come from older weights, because an update asked to reuse prefixes:
  // every version they may come from. Empty otherwise.
  std::vector<std::string> prefix_versions = {};
};

using Sink = std::function<void(Output&&)>;

struct Request {
  RequestId id = 0;  // assigned by Engine::submit
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  LogprobOptions logprobs;
  std::unique_ptr<TokenMask> mask;  // may be null
  std::string extra_key;            // prefixes are shared only among requests with the same key
  Sink sink;
};

}  // namespace nibble::engine
