// The engine thread: commands, one step at a time, results to sinks. Loading is in create.cpp,
// pauses and weight updates in lifecycle.cpp.
#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "engine/engine_impl.h"
#include "engine/sampler.h"

namespace nibble::engine {

namespace {

SchedulerLimits scheduler_limits(const EngineConfig& config) {
  SchedulerLimits limits;
  limits.max_running = config.max_running_requests;
  limits.max_step_tokens = config.chunked_prefill_size;
  limits.prefix_cache = config.prefix_cache;
  // CPU kernels give a row the same bits in prefill and decode; CUDA's do not.
  const bool one_order = config.device.kind == Device::Kind::Cpu;
  limits.reuse_generated = one_order || config.reuse_generated_kv;
  limits.replay_by_decode = !one_order;
  return limits;
}

}  // namespace

EngineImpl::EngineImpl(Parts parts)
    : parts_(std::move(parts)),
      cache_(parts_.pool->page_size()),
      scheduler_(scheduler_limits(parts_.config), *parts_.pool, cache_),
      source_(parts_.model->first_source()) {
  scheduler_.set_eos(source_.eos_token_ids);
  publish();
  thread_ = std::thread([this] { loop(); });
}

EngineImpl::~EngineImpl() {
  post([this] { stopping_ = true; });
  thread_.join();
}

// ---- commands ----

bool EngineImpl::post(Command command) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      return false;
    }
    commands_.push_back(std::move(command));
  }
  wake_.notify_one();
  return true;
}

std::vector<EngineImpl::Command> EngineImpl::wait_for_commands() {
  std::unique_lock lock(mutex_);
  if (!can_step()) {
    const auto ready = [this] { return !commands_.empty(); };
    if (flush_ != nullptr) {
      wake_.wait_until(lock, flush_->deadline, ready);
    } else {
      wake_.wait(lock, ready);
    }
  }
  std::vector<Command> taken(std::make_move_iterator(commands_.begin()),
                             std::make_move_iterator(commands_.end()));
  commands_.clear();
  return taken;
}

// ---- the loop ----

void EngineImpl::loop() noexcept {
  Error why{ErrorCode::Cancelled, "the server is shutting down", {}};
  try {
    while (!stopping_) {
      for (Command& command : wait_for_commands()) {
        command();
      }
      settle();
      if (can_step() && !stopping_) {
        step();
        settle();  // the step may have been what a commit or a flush waited for
      }
      publish();
#ifdef NIBBLE_DCHECK
      if (scheduler_.idle()) {
        scheduler_.check_integrity();
      }
#endif
    }
  } catch (const std::exception& failure) {  // the environment failed: nothing can be trusted
    healthy_ = false;
    why = Error{ErrorCode::Internal, failure.what(), {}};
    LOG(error, "the engine stopped", {"why", failure.what()});
  }
  end_all(healthy_ ? FinishReason::Abort : FinishReason::Error, why);
  fail_pending(why);
  std::deque<Command> dropped;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    dropped.swap(commands_);
  }
  for (Command& command : dropped) {  // late submissions get an answer too
    command();
  }
  end_all(healthy_ ? FinishReason::Abort : FinishReason::Error, why);
  fail_pending(why);
  publish();
}

bool EngineImpl::can_step() const {
  return !paused_ && !scheduler_.idle() && released_.empty() && weights_valid_;
}

void EngineImpl::step() {
  const std::optional<Batch> batch = scheduler_.next();
  if (!batch) {
    return;
  }
  const Clock::time_point begin = Clock::now();
  std::vector<std::optional<int32_t>> tokens(batch->slices.size());
  std::vector<PositionLogprobs> logprobs(batch->slices.size());
  const auto consume = [&](std::span<const LogitRow> rows) {
    sample_block(*batch, rows, tokens, logprobs);
  };
  const auto choose = [&](size_t slice, int64_t position) -> std::optional<DrawRequest> {
    const Sequence& sequence = *batch->slices[slice].sequence;
    const bool of_prompt = position + 1 < sequence.prompt_tokens;
    return of_prompt ? std::nullopt : draw_request(sequence);
  };
  parts_.runner->run(*batch, *parts_.pool, consume, choose);
  std::vector<StepResult> results = scheduler_.commit(*batch, tokens);
  if (batch->decode) {
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    decode_rate_ = static_cast<double>(batch->slices.size()) / seconds.count();
  }
  publish();  // who sees the last output sees the pages free
  for (size_t i = 0; i < results.size(); ++i) {
    deliver(std::move(results[i]), std::move(logprobs[i]));
  }
}

void EngineImpl::sample_block(const Batch& batch,
                              std::span<const LogitRow> rows,
                              std::vector<std::optional<int32_t>>& tokens,
                              std::vector<PositionLogprobs>& logprobs) {
  // Masks are filled on this thread; rows are independent and may run on the kernels' pool.
  std::vector<std::vector<uint32_t>> masks(rows.size());
  std::vector<PositionLogprobs> of_prompt(rows.size());
  const auto is_prompt = [&](const LogitRow& row) {
    return row.position + 1 < batch.slices[row.slice].sequence->prompt_tokens;
  };
  const size_t words = (static_cast<size_t>(parts_.info.vocab_size) + 31) / 32;
  for (size_t i = 0; i < rows.size(); ++i) {
    Sequence& sequence = *batch.slices[rows[i].slice].sequence;
    if (!is_prompt(rows[i]) && sequence.request.mask != nullptr) {
      masks[i].assign(words, 0);
      if (!sequence.request.mask->fill(masks[i])) {
        masks[i].clear();
      }
    }
  }
  const auto work = [&](int64_t begin, int64_t end, int /*thread_index*/) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const LogitRow& row = rows[i];
      const Sequence& sequence = *batch.slices[row.slice].sequence;
      if (is_prompt(row)) {
        const int32_t next = sequence.tokens[static_cast<size_t>(row.position) + 1];
        of_prompt[i] = prompt_logprobs(row.logits, next, sequence.request.logprobs);
      } else {
        std::optional<Sampled> sampled;
        if (row.drawn) {
          const auto request = draw_request(sequence);
          CHECK(request.has_value(), "a row was drawn that only the host can draw");
          sampled =
              sampled_from(*request, *row.drawn, row.candidates, parts_.info.vocab_size, sequence);
        }
        if (!sampled) {
          sampled = sample(
              row.drawn ? row.fetch() : row.logits, sequence, masks[i], source_.eos_token_ids);
        }
        tokens[row.slice] = sampled->token;
        logprobs[row.slice] = std::move(sampled->logprobs);
      }
    }
  };
  const auto count = static_cast<int64_t>(rows.size());
  if (parts_.stream.get().device.kind == Device::Kind::Cpu) {
    static_cast<ThreadPool*>(parts_.stream.get().native)->parallel_for(count, 1, work);
  } else {
    work(0, count, 0);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    Sequence& sequence = *batch.slices[rows[i].slice].sequence;
    if (is_prompt(rows[i])) {
      // The first wanted position of a prompt from 0 on has no logits before it.
      if (sequence.prompt_logprobs.empty() && sequence.request.logprobs.prompt_start == 0) {
        sequence.prompt_logprobs.emplace_back();
      }
      sequence.prompt_logprobs.push_back(std::move(of_prompt[i]));
    } else if (tokens[rows[i].slice]) {
      remember(sequence, *tokens[rows[i].slice]);
      if (sequence.request.mask != nullptr) {
        sequence.request.mask->accept(*tokens[rows[i].slice]);
      }
    }
  }
}

// ---- results ----

Output EngineImpl::output_of(Sequence& sequence) const {
  Output output;
  output.id = sequence.id();
  output.prompt_tokens = sequence.prompt_tokens;
  output.cached_tokens = std::max<int64_t>(sequence.cached_tokens, 0);
  output.completion_tokens = sequence.num_generated();
  output.num_retractions = sequence.num_retractions;
  output.weight_version = weight_version_;
  if (prefix_versions_.size() > 1 && output.cached_tokens > 0) {
    output.prefix_versions = prefix_versions_;
  }
  return output;
}

void EngineImpl::deliver(StepResult result, PositionLogprobs logprobs) {
  Sequence& sequence = *result.sequence;
  const bool prefill_only = result.finish != FinishReason::None && !result.token;
  if (!result.token && !prefill_only) {
    // Either more prompt is to come, or the last row of the prompt gave no token.
    if (sequence.computed == sequence.num_tokens()) {
      end(scheduler_.drop(&sequence),
          FinishReason::Error,
          Error{ErrorCode::Internal, "the model computed logits that are not finite", {}});
    }
    return;
  }
  Output output = output_of(sequence);
  if (result.token) {
    output.tokens.push_back(*result.token);
    ++generated_tokens_;
    if (sequence.request.logprobs.output) {
      output.logprobs.push_back(std::move(logprobs));
    }
  }
  if (!sequence.prompt_logprobs_done) {
    sequence.prompt_logprobs_done = true;
    // A one-token prompt has no row before its last.
    if (sequence.request.logprobs.prompt_start == 0 && sequence.prompt_logprobs.empty()) {
      sequence.prompt_logprobs.emplace_back();
    }
    output.prompt_logprobs = std::move(sequence.prompt_logprobs);
  }
  output.finish = result.finish;
  output.matched_token = result.matched_token;
  if (result.finished != nullptr) {
    --unfinished_;
  }
  sequence.request.sink(std::move(output));
}

void EngineImpl::end(std::unique_ptr<Sequence> sequence, FinishReason reason, Error error) {
  Output output = output_of(*sequence);
  output.finish = reason;
  output.error = std::move(error);
  --unfinished_;
  sequence->request.sink(std::move(output));
}

void EngineImpl::end_all(FinishReason reason, const Error& error) {
  for (std::unique_ptr<Sequence>& sequence : scheduler_.remove_all()) {
    end(std::move(sequence), reason, error);
  }
  for (std::unique_ptr<Sequence>& sequence : std::exchange(held_, {})) {
    end(std::move(sequence), reason, error);
  }
}

// ---- any thread ----

Result<RequestId> EngineImpl::submit(Request request) {
  TRY(validate(request));
  if (!healthy_) {
    return fail(ErrorCode::Internal, "the engine has stopped");
  }
  if (!accepts_) {
    return fail(ErrorCode::Overloaded,
                "no requests are taken in state " + std::string(to_string(weights().state)));
  }
  const EngineConfig& config = parts_.config;
  if (unfinished_ >= config.max_running_requests + config.max_queued_requests) {
    return fail(ErrorCode::Overloaded,
                "the request queue is full: " + std::to_string(config.max_queued_requests) +
                    " requests wait");
  }
  auto sequence = std::make_unique<Sequence>();
  const RequestId id = next_id_++;
  request.id = id;
  sequence->tokens = std::move(request.prompt);
  sequence->prompt_tokens = sequence->num_tokens();
  sequence->max_tokens =
      std::min({parts_.info.context_length,
                parts_.info.max_total_tokens,
                sequence->prompt_tokens + std::max<int64_t>(request.sampling.max_new_tokens, 1)});
  sequence->prompt_logprobs_done = request.logprobs.prompt_start < 0;
  sequence->request = std::move(request);
  ++unfinished_;
  // A shared_ptr only because std::function wants copyable captures.
  auto holder = std::make_shared<std::unique_ptr<Sequence>>(std::move(sequence));
  const bool posted = post([this, holder] {
    if (holds_new_requests()) {
      held_.push_back(std::move(*holder));
    } else {
      scheduler_.add(std::move(*holder));
    }
  });
  if (!posted) {
    --unfinished_;
    return fail(ErrorCode::Internal, "the engine has stopped");
  }
  return id;
}

void EngineImpl::abort(RequestId id) {
  post([this, id] {
    std::unique_ptr<Sequence> sequence = scheduler_.remove(id);
    for (auto held = held_.begin(); sequence == nullptr && held != held_.end(); ++held) {
      if ((*held)->id() == id) {
        sequence = std::move(*held);
        held_.erase(held);
        break;
      }
    }
    if (sequence != nullptr) {
      end(std::move(sequence), FinishReason::Abort, {ErrorCode::Cancelled, "aborted", {}});
    }
  });
}

void EngineImpl::abort_all() {
  post([this] { end_all(FinishReason::Abort, {ErrorCode::Cancelled, "aborted", {}}); });
}

Load EngineImpl::load() const {
  const std::lock_guard lock(mutex_);
  return load_;
}

void EngineImpl::publish() {
  Load load;
  load.running = scheduler_.num_running();
  load.waiting = scheduler_.num_waiting() + static_cast<int64_t>(held_.size());
  load.used_tokens = scheduler_.used_tokens();
  load.max_total_tokens = parts_.info.max_total_tokens;
  load.generated_tokens = generated_tokens_;
  load.last_decode_tokens_per_second = decode_rate_;
  const EngineState now = state();
  accepts_ = now != EngineState::Released && now != EngineState::NeedsWeights;
  const std::lock_guard lock(mutex_);
  load_ = load;
  weights_ = {source_.directory,
              weight_version_,
              static_cast<int64_t>(weights_serial_),
              false,
              now,
              {released_.begin(), released_.end()},
              weights_valid_};
  if (published_source_.stamps != source_.stamps ||
      published_source_.directory != source_.directory) {
    published_source_ = source_;
  }
}

}  // namespace nibble::engine
