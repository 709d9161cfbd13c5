// Pauses, cache flushes, memory release: the engine's state machine, but for weight updates
// (weight_update.cpp). The states and moves are drawn in docs/engine.md.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "engine/engine_impl.h"

namespace nibble::engine {

namespace {

constexpr double kLongestFlushSeconds = 86400;  // beyond, the clock's arithmetic would overflow

constexpr std::array kAllTags{MemoryTag::KvCache, MemoryTag::Weights, MemoryTag::CudaGraph};

}  // namespace

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
    text += fmt::format(" ({} released)", to_string(tag));
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
      return tl::unexpected<Error>(
          wrong_state("pause", released_.empty() ? "update weights" : "resume memory"));
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
      return tl::unexpected<Error>(
          wrong_state("a flush while another is already in progress", "wait for it"));
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
      commit_->aborted = scheduler_.num_running() + scheduler_.num_waiting();
      end_all(FinishReason::Abort, {ErrorCode::Cancelled, "aborted by a weight update", {}});
    }
    // Requests that cannot go on, for a pause or for want of memory or weights, are not waited for.
    const bool nothing_runs = paused_ || !weights_valid_ || !released_.empty();
    if (policy != RunningPolicy::Wait || nothing_runs || scheduler_.idle()) {
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

// ---- memory ----

Result<void> EngineImpl::release_memory(const std::vector<MemoryTag>& wanted) {
  return call<void>([this, wanted]() -> Result<void> {
    const std::set<MemoryTag> tags = wanted.empty()
                                         ? std::set<MemoryTag>(kAllTags.begin(), kAllTags.end())
                                         : std::set<MemoryTag>(wanted.begin(), wanted.end());
    if (scheduler_.num_running() > 0 || (!paused_ && !scheduler_.idle()) || commit_ != nullptr) {
      return tl::unexpected<Error>(wrong_state(
          "a release while requests run",
          paused_ ? "abort, pause with retract" : "wait for idle, abort, pause with retract"));
    }
    if (staging_ && tags.contains(MemoryTag::Weights)) {  // staging reads where the weights are
      return tl::unexpected<Error>(
          wrong_state("a release while new weights are read", "wait for the weight update"));
    }
    for (const MemoryTag tag : tags) {
      if (released_.contains(tag)) {
        return tl::unexpected<Error>(
            wrong_state(fmt::format("a second release of {}", to_string(tag)), "resume memory"));
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
        return tl::unexpected<Error>(
            wrong_state(fmt::format("a resume of {}, which is not released,", to_string(tag)),
                        "release memory"));
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
