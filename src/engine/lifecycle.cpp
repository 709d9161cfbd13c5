// Pauses, cache flushes, weight updates, memory release: the engine's state machine. The states and
// moves are drawn in docs/engine.md.
#include <algorithm>
#include <array>
#include <new>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "engine/engine_impl.h"
#include "model/stored_values.h"

namespace nibble::engine {

namespace {

constexpr int kLoaderThreads = 1;               // staging must not take the cores that serve
constexpr double kLongestFlushSeconds = 86400;  // beyond, the clock's arithmetic would overflow

// Buffers of single tensors are plain host memory: when it runs out, that is no bug of ours.
template <typename Load>
auto or_no_memory(const Load& load) -> decltype(load()) {
  try {
    return load();
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::Overloaded, "not enough memory to read its tensors");
  }
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string_view name_of(MemoryTag tag) {
  switch (tag) {
    case MemoryTag::Weights:
      return "weights";
    case MemoryTag::KvCache:
      return "kv_cache";
    case MemoryTag::CudaGraph:
      return "cuda_graph";
  }
  return "unknown";
}

constexpr std::array kAllTags{MemoryTag::KvCache, MemoryTag::Weights, MemoryTag::CudaGraph};

}  // namespace

std::string_view to_string(EngineState state) {
  switch (state) {
    case EngineState::Serving:
      return "serving";
    case EngineState::Paused:
      return "paused";
    case EngineState::Committing:
      return "committing";
    case EngineState::Released:
      return "released";
    case EngineState::NeedsWeights:
      return "needs-weights";
    case EngineState::Failed:
      return "failed";
  }
  return "unknown";
}

EngineState EngineImpl::state() const {
  if (!healthy_) {
    return EngineState::Failed;
  }
  if (!released_.empty()) {
    return EngineState::Released;
  }
  if (!weights_valid_) {
    return EngineState::NeedsWeights;
  }
  if (commit_ != nullptr) {
    return EngineState::Committing;
  }
  return paused_ ? EngineState::Paused : EngineState::Serving;
}

Error EngineImpl::wrong_state(std::string_view move, std::string_view allowed) const {
  std::string text = fmt::format("{} is not possible in state {}", move, to_string(state()));
  for (const MemoryTag tag : released_) {
    text += fmt::format(" ({} released)", name_of(tag));
  }
  return {ErrorCode::WrongState, fmt::format("{}; possible now: {}", text, allowed), {}};
}

WeightsInfo EngineImpl::weights() const {
  const std::lock_guard lock(mutex_);
  WeightsInfo info = weights_;
  info.staging = staging_;
  return info;
}

// ---- pause and flush ----

Result<void> EngineImpl::pause(PauseMode mode) {
  return call<void>([this, mode]() -> Result<void> {
    if (!released_.empty() || !weights_valid_) {
      return tl::unexpected<Error>(wrong_state("pause", "resume memory, update weights"));
    }
    paused_ = true;
    if (mode == PauseMode::Abort) {
      end_all(FinishReason::Abort, {ErrorCode::Cancelled, "aborted by a pause", {}});
    } else if (mode == PauseMode::Retract) {
      scheduler_.retract_all();
    }
    return {};
  });
}

Result<void> EngineImpl::resume() {
  return call<void>([this]() -> Result<void> {
    paused_ = false;  // also when it was not paused: clients call it to be sure
    return {};
  });
}

Result<void> EngineImpl::flush_cache(double timeout_seconds) {
  std::future<Result<void>> future;
  const Result<void> accepted = call<void>([&, this]() -> Result<void> {
    if (flush_ != nullptr) {
      return fail(ErrorCode::WrongState, "a flush is already in progress");
    }
    flush_ = std::make_unique<PendingFlush>();
    const double seconds =  // NaN waits for nothing
        timeout_seconds > 0 ? std::min(timeout_seconds, kLongestFlushSeconds) : 0.0;
    flush_->deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                          std::chrono::duration<double>(seconds));
    future = flush_->done.get_future();
    return {};
  });
  if (!accepted) {
    return accepted;
  }
  return await(future);
}

void EngineImpl::settle() {
  if (commit_ != nullptr) {
    const RunningPolicy policy = commit_->update->running;
    if (policy == RunningPolicy::Abort) {
      end_all(FinishReason::Abort, {ErrorCode::Cancelled, "aborted by a weight update", {}});
    }
    if (policy != RunningPolicy::Wait || paused_ || scheduler_.idle()) {
      commit_now();
    }
  }
  if (flush_ != nullptr) {
    // Waiting requests hold no pages; frozen ones do.
    if (scheduler_.num_running() == 0) {
      parts_.pool->give(cache_.clear());
      flush_->done.set_value({});
      flush_ = nullptr;
    } else if (Clock::now() >= flush_->deadline) {
      flush_->done.set_value(tl::unexpected<Error>(
          Error{ErrorCode::WrongState,
                fmt::format("the cache cannot be flushed while {} requests run",
                            scheduler_.num_running()),
                {}}));
      flush_ = nullptr;
    }
  }
}

void EngineImpl::fail_pending(const Error& error) {
  if (commit_ != nullptr) {
    std::exchange(commit_, nullptr)->done.set_value(tl::unexpected<Error>(error));
  }
  if (flush_ != nullptr) {
    std::exchange(flush_, nullptr)->done.set_value(tl::unexpected<Error>(error));
  }
}

// ---- weights ----

Result<WeightUpdateReport> EngineImpl::update_weights(const WeightUpdate& update) {
  const std::unique_lock only_one(update_mutex_, std::try_to_lock);
  if (!only_one.owns_lock()) {
    return fail(ErrorCode::WrongState, "another weight update is in progress");
  }
  TRY(call<void>([this]() -> Result<void> {
    if (released_.contains(MemoryTag::Weights)) {
      return tl::unexpected<Error>(
          wrong_state("a weight update", "resume memory with tag weights"));
    }
    staging_ = true;  // on this thread: no release can come between
    return {};
  }));

  const Clock::time_point begin = Clock::now();
  Result<model::StagedWeights> staged = or_no_memory([&] {
    const std::unique_ptr<std::atomic<bool>, void (*)(std::atomic<bool>*)> mark(
        &staging_, [](std::atomic<bool>* staging) { *staging = false; });
    const StreamOwner loader(parts_.stream.get().device, kLoaderThreads);
    return parts_.model->stage(update.model_path, loader.get());
  });
  const double staging_seconds = seconds_since(begin);
  // Only the lack of memory has this code: a bad checkpoint is never loaded in place.
  const bool no_memory = !staged && staged.error().code == ErrorCode::Overloaded;
  if (!staged && !(no_memory && update.allow_in_place)) {
    LOG(warn, "weight update refused", {"path", update.model_path}, {"why", staged.error().text()});
    return tl::unexpected<Error>(staged.error());
  }

  std::future<Result<WeightUpdateReport>> future;
  TRY(call<void>([&, this]() -> Result<void> {
    commit_ = std::make_unique<PendingCommit>();
    commit_->update = &update;
    commit_->staged = staged ? &*staged : nullptr;
    commit_->since = Clock::now();
    future = commit_->done.get_future();
    return {};
  }));
  WeightUpdateReport report = TRY(await(future));
  report.staging_seconds = staging_seconds;
  LOG(info,
      "weights updated",
      {"path", update.model_path},
      {"version", report.weight_version},
      {"staging_seconds", report.staging_seconds},
      {"wait_seconds", report.wait_seconds},
      {"commit_seconds", report.commit_seconds});
  return report;
}

void EngineImpl::commit_now() {
  const std::unique_ptr<PendingCommit> commit = std::move(commit_);
  const double wait_seconds = seconds_since(commit->since);
  const Clock::time_point begin = Clock::now();
  Result<WeightUpdateReport> report = replace_weights(*commit->update, commit->staged);
  if (report) {
    report->wait_seconds = wait_seconds;
    report->commit_seconds = seconds_since(begin);
  }
  for (std::unique_ptr<Sequence>& sequence : std::exchange(held_, {})) {
    scheduler_.add(std::move(sequence));
  }
  publish();
  commit->done.set_value(std::move(report));
}

Result<WeightUpdateReport> EngineImpl::replace_weights(const WeightUpdate& update,
                                                       model::StagedWeights* staged) {
  if (released_.contains(MemoryTag::Weights)) {  // released while the new ones were staged
    return tl::unexpected<Error>(wrong_state("a weight update", "resume memory with tag weights"));
  }
  model::ParameterStore& parameters = parts_.model->parameters();
  if (staged != nullptr) {
    parameters.commit(std::move(staged->staged), parts_.stream.get());
  } else {
    weights_valid_ = false;
    Result<void> loaded = or_no_memory(
        [&] { return parts_.model->load_in_place(update.model_path, parts_.stream.get()); });
    if (!loaded) {
      Error error = loaded.error();
      error.message += "; the old weights are partly overwritten: the state is needs-weights";
      end_all(FinishReason::Error, error);
      return tl::unexpected<Error>(std::move(error));
    }
  }
  weights_valid_ = true;
  ++weights_serial_;
  scheduler_.set_weights_serial(weights_serial_);
  if (update.flush_cache) {
    parts_.pool->give(cache_.clear());
  }
  model_path_ = update.model_path;
  weight_version_ = update.weight_version.value_or(fmt::format("update-{}", weights_serial_));
  WeightUpdateReport report;
  report.weight_version = weight_version_;
  report.bytes = static_cast<int64_t>(parameters.size_bytes());
  report.in_place = staged == nullptr;
  return report;
}

Result<void> EngineImpl::set_weight_version(const std::string& version) {
  return call<void>([this, version]() -> Result<void> {
    weight_version_ = version;
    return {};
  });
}

Result<std::vector<WeightChecksum>> EngineImpl::weight_checksums() {
  return call<std::vector<WeightChecksum>>([this]() -> Result<std::vector<WeightChecksum>> {
    if (!parts_.model->parameters().resident()) {
      return tl::unexpected<Error>(wrong_state("a checksum", "resume memory with tag weights"));
    }
    std::vector<WeightChecksum> all;
    for (const model::Checksum& sum : parts_.model->parameters().checksums(parts_.stream.get())) {
      all.push_back({sum.name, fmt::format("{:016x}", sum.value)});
    }
    return all;
  });
}

Result<NamedWeight> EngineImpl::weight_by_name(const std::string& name, int64_t max_rows) {
  const model::StoredValues stored =
      TRY(model::read_stored_values(weights().model_path, name, max_rows));
  NamedWeight weight;
  for (int i = 0; i < stored.shape.rank; ++i) {
    weight.shape.push_back(stored.shape[i]);
  }
  weight.values = stored.values;
  weight.rows = stored.rows;
  return weight;
}

// ---- memory ----

Result<void> EngineImpl::release_memory(const std::vector<MemoryTag>& wanted) {
  return call<void>([this, wanted]() -> Result<void> {
    const std::set<MemoryTag> tags = wanted.empty()
                                         ? std::set<MemoryTag>(kAllTags.begin(), kAllTags.end())
                                         : std::set<MemoryTag>(wanted.begin(), wanted.end());
    if (scheduler_.num_running() > 0 || (!paused_ && !scheduler_.idle()) || commit_ != nullptr) {
      return tl::unexpected<Error>(
          wrong_state("a release while requests run", "wait for idle, abort, pause with retract"));
    }
    if (staging_ && tags.contains(MemoryTag::Weights)) {  // staging reads where the weights are
      return tl::unexpected<Error>(
          wrong_state("a release while new weights are read", "wait for the weight update"));
    }
    for (const MemoryTag tag : tags) {
      if (released_.contains(tag)) {
        return tl::unexpected<Error>(
            wrong_state(fmt::format("a second release of {}", name_of(tag)), "resume memory"));
      }
    }
    if (tags.contains(MemoryTag::KvCache)) {
      parts_.pool->give(cache_.clear());
      parts_.pool->release();
    }
    if (tags.contains(MemoryTag::Weights)) {
      parts_.model->parameters().release();
      weights_valid_ = false;
    }
    released_.insert(tags.begin(), tags.end());
    return {};
  });
}

Result<void> EngineImpl::resume_memory(const std::vector<MemoryTag>& wanted) {
  return call<void>([this, wanted]() -> Result<void> {
    const std::set<MemoryTag> tags =
        wanted.empty() ? released_ : std::set<MemoryTag>(wanted.begin(), wanted.end());
    if (tags.empty()) {
      return tl::unexpected<Error>(wrong_state("a resume of memory", "release memory"));
    }
    for (const MemoryTag tag : tags) {
      if (!released_.contains(tag)) {
        return tl::unexpected<Error>(wrong_state(
            fmt::format("a resume of {}, which is not released,", name_of(tag)), "release memory"));
      }
    }
    if (tags.contains(MemoryTag::Weights)) {
      TRY(parts_.model->parameters().resume(parts_.stream.get()));
    }
    if (tags.contains(MemoryTag::KvCache)) {
      if (Result<void> resumed = parts_.pool->resume(parts_.stream.get()); !resumed) {
        if (tags.contains(MemoryTag::Weights)) {
          parts_.model->parameters().release();
        }
        return resumed;
      }
    }
    for (const MemoryTag tag : tags) {
      released_.erase(tag);
    }
    return {};
  });
}

}  // namespace nibble::engine
