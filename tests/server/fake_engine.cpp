#include "server/fake_engine.h"

#include <algorithm>

namespace nibble::test {

using engine::FinishReason;

FakeEngine::FakeEngine() {
  info_.model_path = "/models/fake";
  info_.architecture = "FakeForCausalLM";
  info_.model_type = "fake";
  info_.vocab_size = kFakeVocab;
  info_.context_length = kFakeContext;
  info_.max_total_tokens = 4096;
  info_.eos_token_ids = {kEos};
  info_.quantization = "none";
  info_.step_kernel = "fake_step";
  weights_.model_path = info_.model_path;
  weights_.weight_version = "fake-1";
  thread_ = std::thread([this] { run(); });
}

FakeEngine::~FakeEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void FakeEngine::set_script(Script script) {
  const std::lock_guard lock(mutex_);
  script_ = std::move(script);
}

void FakeEngine::hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void FakeEngine::release() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  changed_.notify_all();
}

void FakeEngine::fail_requests(Error error) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(error);
}

std::vector<engine::SamplingParams> FakeEngine::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

size_t FakeEngine::num_aborts() const {
  const std::lock_guard lock(mutex_);
  return num_aborts_;
}

Result<engine::RequestId> FakeEngine::submit(engine::Request request) {
  const std::lock_guard lock(mutex_);
  const engine::RequestId id = next_id_++;
  seen_.push_back(request.sampling);
  Running running;
  running.answer =
      script_ ? script_(request.prompt) : std::string(request.prompt.begin(), request.prompt.end());
  running.request = std::move(request);
  running_.emplace(id, std::move(running));
  changed_.notify_all();
  return id;
}

void FakeEngine::abort(engine::RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto found = running_.find(id);
  if (found != running_.end() && !found->second.aborted) {
    found->second.aborted = true;
    ++num_aborts_;
    changed_.notify_all();
  }
}

void FakeEngine::abort_all() {
  const std::lock_guard lock(mutex_);
  for (auto& [id, running] : running_) {
    running.aborted = true;
    ++num_aborts_;
  }
  changed_.notify_all();
}

engine::Load FakeEngine::load() const {
  const std::lock_guard lock(mutex_);
  engine::Load load;
  load.running = static_cast<int64_t>(running_.size());
  load.max_total_tokens = info_.max_total_tokens;
  load.generated_tokens = generated_;
  return load;
}

engine::WeightsInfo FakeEngine::weights() const {
  const std::lock_guard lock(mutex_);
  return weights_;
}

Result<engine::WeightUpdateReport> FakeEngine::update_weights(const engine::WeightUpdate& update) {
  const std::lock_guard lock(mutex_);
  if (update.model_path == "/") {
    if (update.allow_in_place) {
      weights_.state = engine::EngineState::NeedsWeights;
    }
    return invalid("expected config.json in the directory", update.model_path);
  }
  weights_.model_path = update.model_path;
  weights_.weight_version = update.weight_version.value_or("fake-2");
  engine::WeightUpdateReport report;
  report.weight_version = weights_.weight_version;
  return report;
}

Result<void> FakeEngine::set_weight_version(const std::string& version) {
  const std::lock_guard lock(mutex_);
  weights_.weight_version = version;
  return {};
}

Result<void> FakeEngine::pause(engine::PauseMode /*mode*/) {
  const std::lock_guard lock(mutex_);
  if (weights_.state == engine::EngineState::Paused) {
    return fail(ErrorCode::WrongState, "the engine is paused; allowed: continue");
  }
  weights_.state = engine::EngineState::Paused;
  held_ = true;
  return {};
}

Result<void> FakeEngine::resume() {
  release();
  const std::lock_guard lock(mutex_);
  weights_.state = engine::EngineState::Serving;
  return {};
}

Result<void> FakeEngine::flush_cache(double /*timeout_seconds*/) {
  const std::lock_guard lock(mutex_);
  if (!running_.empty()) {
    return fail(ErrorCode::WrongState, "requests are running");
  }
  return {};
}

Result<void> FakeEngine::release_memory(const std::vector<engine::MemoryTag>& /*tags*/) {
  return {};
}

Result<void> FakeEngine::resume_memory(const std::vector<engine::MemoryTag>& /*tags*/) {
  return fail(ErrorCode::WrongState, "nothing is released");
}

Result<std::vector<engine::WeightChecksum>> FakeEngine::weight_checksums() {
  const std::lock_guard lock(mutex_);
  return std::vector<engine::WeightChecksum>{{"model.weight", weights_.weight_version}};
}

void FakeEngine::step(Running& running) {
  const engine::SamplingParams& sampling = running.request.sampling;
  engine::Output output;
  output.prompt_tokens = static_cast<int64_t>(running.request.prompt.size());
  output.cached_tokens = 1;
  output.weight_version = "fake-1";
  const engine::LogprobOptions& logprobs = running.request.logprobs;
  const auto position = [&](int32_t token, bool first) {
    engine::PositionLogprobs out;
    if (!first) {
      out.token = engine::TokenLogprob{-0.5f * static_cast<float>(token % 7 + 1), token};
      for (int32_t i = 0; i < logprobs.top; ++i) {
        out.top.push_back({-0.25f * static_cast<float>(i + 1), (token + i) % 256});
      }
      for (const int32_t id : logprobs.token_ids) {
        out.chosen.push_back({-3.0f, id});
      }
    }
    return out;
  };
  if (running.done == 0 && logprobs.output && logprobs.prompt_start >= 0) {
    const auto start = static_cast<size_t>(logprobs.prompt_start);
    for (size_t i = start; i < running.request.prompt.size(); ++i) {
      output.prompt_logprobs.push_back(position(running.request.prompt[i], i == 0));
    }
  }
  if (failure_) {
    output.finish = FinishReason::Error;
    output.error = *failure_;
  } else if (running.aborted) {
    output.finish = FinishReason::Abort;
    output.error = {ErrorCode::Cancelled, "aborted", {}};
  } else if (sampling.max_new_tokens == 0) {
    output.finish = FinishReason::Length;
  } else {
    const bool over = running.done >= running.answer.size();
    const int32_t token =
        over ? kEos
             : static_cast<int32_t>(static_cast<unsigned char>(running.answer[running.done]));
    ++running.done;
    ++generated_;
    output.tokens = {token};
    if (logprobs.output) {
      output.logprobs = {position(token, false)};
    }
    const auto& stops = sampling.stop_token_ids;
    const bool stop = !sampling.ignore_eos &&
                      (over || std::find(stops.begin(), stops.end(), token) != stops.end());
    if (stop) {
      output.finish = FinishReason::StopToken;
      output.matched_token = token;
    } else if (running.done >= static_cast<size_t>(sampling.max_new_tokens)) {
      output.finish = FinishReason::Length;
    }
  }
  output.completion_tokens = static_cast<int64_t>(running.done);
  running.request.sink(std::move(output));
  if (failure_ || running.aborted || output.finish != FinishReason::None) {
    running.aborted = true;  // marks it for removal
    running.answer.clear();
    running.request.sink = nullptr;
  }
}

void FakeEngine::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait(lock, [this] {
      const bool any_aborted = std::any_of(
          running_.begin(), running_.end(), [](const auto& entry) { return entry.second.aborted; });
      return stopping_ || any_aborted || (!held_ && !running_.empty());
    });
    if (stopping_) {
      return;
    }
    for (auto it = running_.begin(); it != running_.end();) {
      if (!held_ || it->second.aborted) {
        step(it->second);
      }
      it = it->second.request.sink ? std::next(it) : running_.erase(it);
    }
  }
}

}  // namespace nibble::test
