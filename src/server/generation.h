// The sequences of one HTTP request, from submission to their ends. Everything but cancel() runs on
// the request's queue, so there are no locks; the engine's sinks only post to it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "server/context.h"
#include "server/text_stream.h"

namespace nibble::server {

// What one sequence is to do.
struct SequenceSpec {
  std::string rid;
  TokenIds prompt;
  engine::SamplingParams sampling;
  engine::LogprobOptions logprobs;
  TextOptions text;
  std::string extra_key;  // prefixes are shared among equal keys only
};

// What has come of it.
struct Sequence {
  explicit Sequence(const text::Tokenizer* tokenizer, SequenceSpec wanted)
      : spec(std::move(wanted)), text(tokenizer, spec.text) {}

  SequenceSpec spec;
  TextStream text;
  std::vector<int32_t> tokens;                            // with the stop token, if one ended it
  std::vector<engine::PositionLogprobs> logprobs;         // of tokens
  std::vector<engine::PositionLogprobs> prompt_logprobs;  // from spec.logprobs.prompt_start on
  engine::FinishReason finish = engine::FinishReason::None;
  int32_t matched_token = -1;
  Error error;  // of Abort and Error
  int64_t cached_tokens = 0;
  int64_t num_retractions = 0;
  std::string weight_version;  // of the last output
  // Which weights made how many of the tokens, in their order; one entry unless they were swapped.
  std::vector<std::pair<std::string, int64_t>> weight_versions;
  std::vector<std::string> prefix_versions;  // as engine::Output's
  std::chrono::steady_clock::time_point first_token_at{};
  std::chrono::steady_clock::time_point last_token_at{};
  std::chrono::steady_clock::time_point finished_at{};

  bool done() const { return finish != engine::FinishReason::None; }
  bool failed() const { return finish == engine::FinishReason::Error; }
};

class Generation final : public Cancellable, public std::enable_shared_from_this<Generation> {
 public:
  // Called after every piece of news of a sequence, the last one with done().
  using OnUpdate = std::function<void(Generation&, size_t index)>;

  Generation(ServerContext& context, TaskPool::Queue queue, std::vector<SequenceSpec> specs);

  // Submits all sequences; when one is refused the others are aborted and nothing is called.
  Result<void> start(OnUpdate on_update);

  void cancel(size_t index) override;
  void cancel_all();

  const std::vector<Sequence>& sequences() const { return sequences_; }
  bool all_done() const { return num_done_ == sequences_.size(); }
  std::chrono::steady_clock::time_point created_at() const { return created_at_; }

 private:
  void try_take(size_t index, engine::Output&& output);
  void take(size_t index, engine::Output&& output);
  void finish(size_t index, engine::FinishReason reason);
  void abort_now(size_t index);
  void observe(const Sequence& sequence);

  ServerContext& context_;
  TaskPool::Queue queue_;
  OnUpdate on_update_;
  std::vector<Sequence> sequences_;
  std::vector<engine::RequestId> ids_;  // 0: not submitted
  size_t num_done_ = 0;
  const std::chrono::steady_clock::time_point created_at_ = std::chrono::steady_clock::now();
};

// Checks lengths and fills in what the request left open. `sample` counts the answers to one
// prompt: they differ in their seed only.
Result<SequenceSpec> make_spec(const ServerContext& context,
                               const Sampling& sampling,
                               TokenIds prompt,
                               const std::string& prompt_path,
                               uint64_t seed,
                               int64_t sample);

// Tokens of a prompt, encoded when it is text.
Result<TokenIds> encode_prompt(const ServerContext& context,
                               Prompt&& prompt,
                               const std::string& path);

}  // namespace nibble::server
