// The engine behind engine/engine.h. Two sides: methods called from any thread, which post commands
// and read snapshots under mutex_, and everything else, which belongs to the engine thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/kv_pool.h"
#include "engine/prefix_cache.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "model/model.h"
#include "tensor/device_api.h"

namespace nibble::engine {

class EngineImpl final : public Engine {
 public:
  // What create() loaded; moved in before the thread starts.
  struct Parts {
    EngineConfig config;
    ModelInfo info;
    StreamOwner stream;
    std::unique_ptr<model::Model> model;
    std::unique_ptr<KvPool> pool;
    std::unique_ptr<Runner> runner;
  };
  explicit EngineImpl(Parts parts);
  ~EngineImpl() override;

  const ModelInfo& info() const override { return parts_.info; }
  Result<RequestId> submit(Request request) override;
  void abort(RequestId id) override;
  void abort_all() override;
  Load load() const override;
  bool healthy() const override { return healthy_.load(); }

  WeightsInfo weights() const override;
  Result<WeightUpdateReport> update_weights(const WeightUpdate& update) override;
  void cancel_update() override;
  Result<void> set_weight_version(const std::string& version) override;
  Result<void> pause(PauseMode mode) override;
  Result<void> resume() override;
  Result<void> flush_cache(double timeout_seconds) override;
  Result<void> release_memory(const std::vector<MemoryTag>& tags) override;
  Result<void> resume_memory(const std::vector<MemoryTag>& tags) override;
  Result<std::vector<WeightChecksum>> weight_checksums() override;
  Result<NamedWeight> weight_by_name(const std::string& name, int64_t max_rows) override;

 private:
  using Clock = std::chrono::steady_clock;
  using Command = std::function<void()>;

  // ---- any thread ----
  Result<WeightUpdateReport> update_one(const WeightUpdate& update);
  bool post(Command command);  // false: the thread has ended
  // Runs `body` on the engine thread and returns its result.
  template <typename T>
  Result<T> call(std::function<Result<T>()> body);
  Result<void> validate(const Request& request) const;

  // ---- engine thread: engine.cpp ----
  void loop() noexcept;
  std::vector<Command> wait_for_commands();
  bool can_step() const;
  void step();
  void run_whole(const Batch& batch);
  // A step that the device computes while this thread goes on.
  struct Flying {
    Batch batch;
    int turn = 0;  // of the runner
    Clock::time_point begin;
  };
  bool runs_ahead() const;
  void take_off(Batch batch);
  void go_on_from(const Flying& now);  // takes off with tokens that are not known yet, if it can
  // Completes the step that flies. go_on: after, or before, the next one has taken off.
  void land(bool go_on);
  struct Sampling {
    std::vector<std::optional<int32_t>> tokens;  // by slice
    std::vector<PositionLogprobs> logprobs;
  };
  struct Committed {
    std::vector<StepResult> results;
    std::vector<std::unique_ptr<Sequence>> lost;  // by slice: its logits were not finite
  };
  Committed commit(const Batch& batch, const Sampling& sampled, Clock::time_point begin);
  void deliver_all(Committed committed, Sampling sampled);
  void sample_block(const Batch& batch, std::span<const LogitRow> rows, Sampling& sampled);
  void deliver(StepResult result, std::unique_ptr<Sequence> lost, PositionLogprobs logprobs);
  void end(std::unique_ptr<Sequence> sequence, FinishReason reason, Error error);
  void end_all(FinishReason reason, const Error& error);
  Output output_of(Sequence& sequence) const;
  void publish();  // the snapshots

  // ---- engine thread: lifecycle.cpp ----
  struct PendingCommit {
    const WeightUpdate* update;
    const model::StagedWeights* staged;  // nullptr: load in place
    Clock::time_point since;
    int64_t aborted = 0;
    std::promise<Result<WeightUpdateReport>> done;
  };
  struct PendingFlush {
    Clock::time_point deadline;
    std::promise<Result<void>> done;
  };
  void settle();  // commits or flushes whose moment has come
  void fail_pending(const Error& error);
  void commit_now();
  Result<WeightUpdateReport> replace_weights(const WeightUpdate& update,
                                             const model::StagedWeights* staged);
  Result<model::InPlaceReport> overwrite_weights(const WeightUpdate& update);
  void drop_prefixes(const WeightUpdate& update);
  bool holds_new_requests() const { return commit_ != nullptr; }
  EngineState state() const;
  Error wrong_state(std::string_view move, std::string_view allowed) const;

  Parts parts_;
  PrefixCache cache_;
  Scheduler scheduler_;
  std::optional<Flying> flying_;
  Clock::time_point last_landing_;
  std::vector<std::unique_ptr<Sequence>> held_;  // arrived while a commit waits
  bool paused_ = false;
  bool stopping_ = false;
  bool weights_valid_ = true;
  std::set<MemoryTag> released_;
  uint64_t weights_serial_ = 0;
  model::Source source_;
  std::string weight_version_ = "default";
  std::vector<std::string> prefix_versions_{"default"};  // whose prefixes the cache may find
  std::unique_ptr<PendingCommit> commit_;
  std::unique_ptr<PendingFlush> flush_;
  int64_t generated_tokens_ = 0;
  int64_t early_steps_ = 0;
  double decode_rate_ = 0;

  std::atomic<bool> healthy_{true};
  std::atomic<bool> accepts_{true};  // false: released or without weights
  std::atomic<bool> staging_{false};
  std::atomic<RequestId> next_id_{1};
  std::atomic<int64_t> unfinished_{0};
  std::mutex update_mutex_;  // one update at a time
  std::mutex stop_mutex_;    // of staging_stop_
  std::stop_source staging_stop_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  std::deque<Command> commands_;
  bool ended_ = false;
  Load load_;
  WeightsInfo weights_;
  model::Source published_source_;
  std::thread thread_;
};

// The answer of the engine thread; it may have ended without one.
template <typename T>
Result<T> await(std::future<Result<T>>& future) {
  try {
    return future.get();
  } catch (const std::future_error&) {
    return fail(ErrorCode::Internal, "the engine has stopped");
  }
}

template <typename T>
Result<T> EngineImpl::call(std::function<Result<T>()> body) {
  auto promise = std::make_shared<std::promise<Result<T>>>();
  std::future<Result<T>> future = promise->get_future();
  const bool posted = post([this, promise, body = std::move(body)] {
    Result<T> result = body();
    publish();  // the caller sees the new state
    promise->set_value(std::move(result));
  });
  if (!posted) {
    return fail(ErrorCode::Internal, "the engine has stopped");
  }
  return await(future);
}

}  // namespace nibble::engine
