#include "server/generation.h"

#include <algorithm>
#include <exception>

#include "base/log.h"

namespace nibble::server {

using engine::FinishReason;

namespace {

double seconds_between(std::chrono::steady_clock::time_point begin,
                       std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Alternatives of prompt positions that one request may ask for: about a gigabyte of answer.
constexpr int64_t kMaxPromptAlternatives = 4'000'000;

Result<void> check_prompt_logprobs(const std::vector<Sequence>& sequences) {
  int64_t wanted = 0;
  for (const Sequence& sequence : sequences) {
    const engine::LogprobOptions& options = sequence.spec.logprobs;
    if (options.prompt_start >= 0) {
      wanted += (static_cast<int64_t>(sequence.spec.prompt.size()) - options.prompt_start) *
                (options.top + static_cast<int64_t>(options.token_ids.size()));
    }
  }
  if (wanted > kMaxPromptAlternatives) {
    return fail(ErrorCode::TooLarge,
                "asks for " + std::to_string(wanted) +
                    " logprobs of alternatives in its prompts, at most " +
                    std::to_string(kMaxPromptAlternatives) + " are answered",
                "top_logprobs");
  }
  return {};
}

}  // namespace

Generation::Generation(ServerContext& context,
                       TaskPool::Queue queue,
                       std::vector<SequenceSpec> specs)
    : context_(context), queue_(std::move(queue)), ids_(specs.size(), 0) {
  sequences_.reserve(specs.size());
  for (SequenceSpec& spec : specs) {
    sequences_.emplace_back(context.tokenizer(), std::move(spec));
  }
}

Result<void> Generation::start(OnUpdate on_update) {
  TRY(check_prompt_logprobs(sequences_));
  std::vector<std::string> rids;
  rids.reserve(sequences_.size());
  for (const Sequence& sequence : sequences_) {
    rids.push_back(sequence.spec.rid);
  }
  TRY(context_.live.add(rids, shared_from_this()));
  on_update_ = std::move(on_update);
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const SequenceSpec& spec = sequences_[i].spec;
    engine::Request request;
    request.prompt = spec.prompt;
    request.sampling = spec.sampling;
    request.logprobs = spec.logprobs;
    request.extra_key = spec.extra_key;
    request.sink = [self = shared_from_this(), i](engine::Output&& output) {
      self->queue_.post([self, i, output = std::move(output)]() mutable {
        self->try_take(i, std::move(output));
      });
    };
    const auto id = context_.engine.submit(std::move(request));
    if (!id) {
      on_update_ = nullptr;
      for (size_t k = 0; k < sequences_.size(); ++k) {
        if (k < i) {
          context_.engine.abort(ids_[k]);
        } else {
          context_.live.remove(rids[k]);  // the others when the engine has let go of them
        }
      }
      return tl::unexpected(id.error());
    }
    ids_[i] = *id;
  }
  return {};
}

void Generation::cancel(size_t index) {
  queue_.post([self = shared_from_this(), index] { self->abort_now(index); });
}

void Generation::cancel_all() {
  queue_.post([self = shared_from_this()] {
    for (size_t i = 0; i < self->sequences_.size(); ++i) {
      self->abort_now(i);
    }
  });
}

void Generation::abort_now(size_t index) {
  if (!sequences_[index].done() && ids_[index] != 0) {
    context_.engine.abort(ids_[index]);
  }
}

// Out of memory, or a bug: this request only.
void Generation::try_take(size_t index, engine::Output&& output) {
  try {
    take(index, std::move(output));
  } catch (const std::exception& failure) {
    LOG(error, "a request failed", {"reason", failure.what()});
    on_update_ = nullptr;  // lets go of the exchange, which ends the answer
    for (size_t i = 0; i < sequences_.size(); ++i) {
      abort_now(i);
    }
  }
}

void Generation::take(size_t index, engine::Output&& output) {
  Sequence& sequence = sequences_[index];
  if (sequence.done()) {
    return;  // a stop string ended it before the engine knew
  }
  const auto now = std::chrono::steady_clock::now();
  if (!output.tokens.empty()) {
    if (sequence.tokens.empty()) {
      sequence.first_token_at = now;
    } else {
      context_.metrics.observe_token_gap(seconds_between(sequence.last_token_at, now));
    }
    sequence.last_token_at = now;
  }
  sequence.cached_tokens = output.cached_tokens;
  sequence.num_retractions = output.num_retractions;
  sequence.weight_version = std::move(output.weight_version);
  sequence.prefix_versions = std::move(output.prefix_versions);
  if (const auto count = static_cast<int64_t>(output.tokens.size()); count > 0) {
    auto& versions = sequence.weight_versions;
    if (versions.empty() || versions.back().first != sequence.weight_version) {
      versions.emplace_back(sequence.weight_version, 0);
    }
    versions.back().second += count;
  }
  if (!output.prompt_logprobs.empty()) {
    sequence.prompt_logprobs = std::move(output.prompt_logprobs);
  }
  for (size_t i = 0; i < output.tokens.size(); ++i) {
    const int32_t token = output.tokens[i];
    sequence.tokens.push_back(token);
    if (i < output.logprobs.size()) {
      sequence.logprobs.push_back(std::move(output.logprobs[i]));
    }
    const bool is_stop_token = output.finish == FinishReason::StopToken &&
                               i + 1 == output.tokens.size() && token == output.matched_token;
    if (is_stop_token && !sequence.spec.text.no_stop_trim) {
      continue;  // never part of the text
    }
    if (sequence.text.push(token)) {
      if (output.finish == FinishReason::None) {
        context_.engine.abort(ids_[index]);
      }
      finish(index, FinishReason::StopString);
      return;
    }
  }
  if (output.finish != FinishReason::None) {
    sequence.matched_token = output.matched_token;
    sequence.error = std::move(output.error);
    sequence.text.finish();
    const bool stopped = !sequence.text.matched_stop().empty();
    finish(index, stopped ? FinishReason::StopString : output.finish);
    return;
  }
  if (on_update_) {
    on_update_(*this, index);
  }
}

void Generation::observe(const Sequence& sequence) {
  Metrics::Finished finished;
  finished.prompt_tokens = sequence.spec.prompt.size();
  finished.cached_tokens = static_cast<size_t>(sequence.cached_tokens);
  finished.generated_tokens = sequence.tokens.size();
  if (!sequence.tokens.empty()) {
    finished.first_token_seconds = seconds_between(created_at_, sequence.first_token_at);
  }
  finished.total_seconds = seconds_between(created_at_, sequence.finished_at);
  finished.aborted = sequence.failed() || sequence.finish == FinishReason::Abort;
  context_.metrics.observe_finished(finished);
}

void Generation::finish(size_t index, FinishReason reason) {
  Sequence& sequence = sequences_[index];
  sequence.finish = reason;
  sequence.finished_at = std::chrono::steady_clock::now();
  ++num_done_;
  observe(sequence);
  context_.live.remove(sequence.spec.rid);
  if (on_update_) {
    on_update_(*this, index);
  }
  if (all_done()) {
    on_update_ = nullptr;  // lets go of the exchange
  }
}

Result<TokenIds> encode_prompt(const ServerContext& context,
                               Prompt&& prompt,
                               const std::string& path) {
  TokenIds ids;
  if (auto* text = std::get_if<std::string>(&prompt)) {
    ids = context.text->tokenizer.encode(*text, true);
  } else {
    ids = std::move(std::get<TokenIds>(prompt));
  }
  if (ids.empty()) {
    return invalid("must not be empty", path);
  }
  return ids;
}

Result<SequenceSpec> make_spec(const ServerContext& context,
                               const Sampling& sampling,
                               TokenIds prompt,
                               const std::string& prompt_path,
                               uint64_t seed,
                               int64_t sample) {
  const int64_t context_length = context.limits.context_length;
  const auto num_prompt = static_cast<int64_t>(prompt.size());
  if (num_prompt >= context_length) {
    return invalid("the input (" + std::to_string(num_prompt) +
                       " tokens) is longer than the model's context length (" +
                       std::to_string(context_length) + " tokens)",
                   prompt_path);
  }
  const int64_t room = context_length - num_prompt;
  const int64_t wanted = sampling.max_new_tokens.value_or(room);
  if (wanted > room) {
    return invalid("Requested token count exceeds the model's maximum context length of " +
                       std::to_string(context_length) + " tokens: " + std::to_string(num_prompt) +
                       " of the input and " + std::to_string(wanted) + " of the answer",
                   prompt_path);
  }
  SequenceSpec spec;
  spec.prompt = std::move(prompt);
  spec.sampling = sampling.params;
  if (context.end_token) {
    spec.sampling.stop_token_ids.push_back(*context.end_token);
  }
  spec.sampling.max_new_tokens = static_cast<int32_t>(wanted);
  spec.sampling.min_new_tokens =
      static_cast<int32_t>(std::min<int64_t>(spec.sampling.min_new_tokens, wanted));
  spec.sampling.seed = seed + static_cast<uint64_t>(sample);
  spec.text = sampling.text;
  return spec;
}

}  // namespace nibble::server
