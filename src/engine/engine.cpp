// The engine thread: commands, one step at a time, results to sinks. Loading is in create.cpp,
// pauses and weight updates in lifecycle.cpp.
#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <iterator>
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
  if (!can_step() && !flying_) {
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
      std::vector<Command> commands = wait_for_commands();
      if (!commands.empty() && flying_) {
        land(false);  // commands come between two steps
      }
      for (Command& command : commands) {
        command();
      }
      settle();
      if ((can_step() || flying_) && !stopping_) {
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
  if (flying_ && healthy_) {
    parts_.runner->abandon();
  }
  flying_.reset();
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
  if (!flying_) {
    std::optional<Batch> batch = scheduler_.next();
    if (!batch) {
      return;
    }
    if (!parts_.runner->starts(*batch)) {
      return run_whole(*batch);
    }
    take_off(std::move(*batch));
  }
  land(true);
}

void EngineImpl::run_whole(const Batch& batch) {
  const Clock::time_point begin = Clock::now();
  Sampling sampled;
  const auto choose = [&](size_t slice, int64_t position) -> std::optional<DrawRequest> {
    const Sequence& sequence = *batch.slices[slice].sequence;
    const bool of_prompt = position + 1 < sequence.prompt_tokens;
    return of_prompt ? std::nullopt : draw_request(sequence);
  };
  parts_.runner->run(
      batch,
      *parts_.pool,
      [&](std::span<const LogitRow> rows) { sample_block(batch, rows, sampled); },
      choose);
  Committed committed = commit(batch, sampled, begin);
  publish();  // who sees the last output sees the pages free
  deliver_all(std::move(committed), std::move(sampled));
}

// ---- steps that begin before the one before is over ----

bool EngineImpl::runs_ahead() const {
  if (!parts_.config.overlap || stopping_ || commit_ != nullptr || flush_ != nullptr ||
      !can_step()) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  return commands_.empty();
}

void EngineImpl::take_off(Batch batch) {
  flying_ = Flying{std::move(batch), 0, Clock::now()};
  parts_.runner->start(
      flying_->batch, *parts_.pool, flying_->turn, [this](size_t slice, int64_t /*position*/) {
        return draw_request(*flying_->batch.slices[slice].sequence);
      });
}

void EngineImpl::go_on_from(const Flying& now) {
  const auto drawn_by_device = [](const Slice& slice) {
    if (slice.sequence == nullptr) {
      return true;
    }
    const auto request = draw_request(*slice.sequence, 1);
    return request && request->candidates == 0;
  };
  const std::vector<Slice>& slices = now.batch.slices;
  if (!parts_.runner->draws_all(now.turn) ||
      !std::all_of(slices.begin(), slices.end(), drawn_by_device)) {
    return;
  }
  std::optional<Batch> batch = scheduler_.next_after(now.batch);
  if (!batch) {
    return;
  }
  std::vector<int32_t> rows;  // of `now`, whose order is kept
  for (const Slice& slice : batch->slices) {
    auto row = static_cast<size_t>(rows.empty() ? 0 : rows.back() + 1);
    while (slices[row].sequence != slice.sequence) {
      ++row;
    }
    rows.push_back(static_cast<int32_t>(row));
  }
  ++early_steps_;
  flying_ = Flying{std::move(*batch), 1 - now.turn, Clock::now()};
  parts_.runner->start_after(
      flying_->batch,
      *parts_.pool,
      flying_->turn,
      [this](size_t slice, int64_t /*position*/) {
        return draw_request(*flying_->batch.slices[slice].sequence, 1);
      },
      now.turn,
      std::move(rows));
}

void EngineImpl::land(bool go_on) {
  CHECK(flying_.has_value(), "no step to land");
  const Flying now = std::move(*flying_);
  flying_.reset();
  const bool ahead = go_on && runs_ahead();
  if (ahead) {
    go_on_from(now);
  }
  Sampling sampled;
  parts_.runner->finish(
      now.turn, [&](std::span<const LogitRow> rows) { sample_block(now.batch, rows, sampled); });
  Committed committed = commit(now.batch, sampled, now.begin);
  for (size_t i = 0; i < committed.results.size() && flying_; ++i) {
    if (committed.results[i].finished != nullptr || committed.lost[i] != nullptr) {
      for (Slice& slice : flying_->batch.slices) {
        if (slice.sequence == now.batch.slices[i].sequence) {
          slice.sequence = nullptr;
        }
      }
    }
  }
  // Otherwise the device waits for what comes next; the sinks need not be waited for.
  std::optional<Batch> next;
  if (ahead && !flying_ && can_step()) {
    next = scheduler_.next();
    if (next && parts_.runner->starts(*next)) {
      take_off(std::move(*next));
      next.reset();
    }
  }
  publish();  // who sees the last output sees the pages free
  deliver_all(std::move(committed), std::move(sampled));
  if (next) {
    run_whole(*next);
  }
}

EngineImpl::Committed EngineImpl::commit(const Batch& batch,
                                         const Sampling& sampled,
                                         Clock::time_point begin) {
  Committed committed;
  std::vector<std::optional<int32_t>> tokens = sampled.tokens;
  tokens.resize(batch.slices.size());
  committed.results = scheduler_.commit(batch, tokens);
  committed.lost.resize(batch.slices.size());
  int64_t computed = 0;
  for (size_t i = 0; i < committed.results.size(); ++i) {
    const StepResult& result = committed.results[i];
    if (result.sequence == nullptr) {
      continue;
    }
    ++computed;
    // The last row of the prompt, or of what follows it, gave no token.
    if (!result.token && result.finish == FinishReason::None &&
        result.sequence->computed == result.sequence->num_tokens()) {
      committed.lost[i] = scheduler_.drop(result.sequence);
    }
  }
  const Clock::time_point now = Clock::now();
  if (batch.decode && computed > 0) {
    const std::chrono::duration<double> seconds = now - std::max(begin, last_landing_);
    decode_rate_ = static_cast<double>(computed) / seconds.count();
  }
  last_landing_ = now;
  return committed;
}

void EngineImpl::deliver_all(Committed committed, Sampling sampled) {
  sampled.logprobs.resize(committed.results.size());
  for (size_t i = 0; i < committed.results.size(); ++i) {
    if (committed.results[i].sequence != nullptr) {
      deliver(std::move(committed.results[i]),
              std::move(committed.lost[i]),
              std::move(sampled.logprobs[i]));
    }
  }
}

void EngineImpl::sample_block(const Batch& batch,
                              std::span<const LogitRow> all_rows,
                              Sampling& sampled) {
  std::vector<std::optional<int32_t>>& tokens = sampled.tokens;
  std::vector<PositionLogprobs>& logprobs = sampled.logprobs;
  tokens.resize(batch.slices.size());
  logprobs.resize(batch.slices.size());
  std::vector<LogitRow> rows;  // of sequences that have not ended meanwhile
  rows.reserve(all_rows.size());
  std::copy_if(all_rows.begin(), all_rows.end(), std::back_inserter(rows), [&](const auto& row) {
    return batch.slices[row.slice].sequence != nullptr;
  });
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
        std::optional<Sampled> one;
        if (row.drawn) {
          const auto request = draw_request(sequence);
          CHECK(request.has_value(), "a row was drawn that only the host can draw");
          one =
              sampled_from(*request, *row.drawn, row.candidates, parts_.info.vocab_size, sequence);
        }
        if (!one) {
          one = sample(
              row.drawn ? row.fetch() : row.logits, sequence, masks[i], source_.eos_token_ids);
        }
        tokens[row.slice] = one->token;
        logprobs[row.slice] = std::move(one->logprobs);
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
    } else if (const auto& token = tokens[rows[i].slice]) {
      remember(sequence, *token);
      if (sequence.request.mask != nullptr) {
        sequence.request.mask->accept(*token);
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

void EngineImpl::deliver(StepResult result,
                         std::unique_ptr<Sequence> lost,
                         PositionLogprobs logprobs) {
  if (lost != nullptr) {
    return end(std::move(lost),
               FinishReason::Error,
               Error{ErrorCode::Internal, "the model computed logits that are not finite", {}});
  }
  Sequence& sequence = *result.sequence;
  const bool prefill_only = result.finish != FinishReason::None && !result.token;
  if (!result.token && !prefill_only) {
    return;  // more prompt is to come
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
  load.early_steps = early_steps_;
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
