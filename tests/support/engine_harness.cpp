#include "support/engine_harness.h"

#include <bit>
#include <fstream>
#include <stdexcept>

#include "base/cpu_info.h"

namespace nibble::test {

Pending::Pending(engine::Engine& engine, engine::Request request) {
  request.sink = [state = state_](engine::Output&& output) {
    const std::lock_guard lock(state->mutex);
    Answer& answer = state->answer;
    answer.tokens.insert(answer.tokens.end(), output.tokens.begin(), output.tokens.end());
    answer.versions.resize(answer.tokens.size(), output.weight_version);
    answer.logprobs.insert(answer.logprobs.end(), output.logprobs.begin(), output.logprobs.end());
    answer.prompt_logprobs.insert(
        answer.prompt_logprobs.end(), output.prompt_logprobs.begin(), output.prompt_logprobs.end());
    state->done = output.finish != engine::FinishReason::None;
    answer.last = std::move(output);
    state->changed.notify_all();
  };
  Result<engine::RequestId> id = engine.submit(std::move(request));
  if (!id) {
    throw std::runtime_error("request refused: " + id.error().text());
  }
  id_ = *id;
}

void Pending::wait_for_tokens(size_t count) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->done || state_->answer.tokens.size() >= count; });
}

Answer Pending::wait() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->done; });
  Answer answer = state_->answer;
  answer.id = id_;
  return answer;
}

Device test_device() {
  std::ifstream file("/proc/self/cmdline");
  for (std::string argument; std::getline(file, argument, '\0');) {
    if (argument == "--nibble_device=cuda") {
      return Device{Device::Kind::Cuda, 0};
    }
    if (argument.starts_with("--nibble_device=") && argument != "--nibble_device=cpu") {
      throw std::runtime_error("expected --nibble_device=cpu or cuda, found " + argument);
    }
  }
  return Device{};
}

engine::EngineConfig tiny_config(const std::string& directory) {
  engine::EngineConfig config;
  config.model_path = directory;
  config.device = test_device();
  config.num_threads = 2;
  config.cpu_isa = detect_cpu_isa();
  config.max_total_tokens = 4096;
  return config;
}

std::unique_ptr<engine::Engine> start_engine(const engine::EngineConfig& config) {
  Result<std::unique_ptr<engine::Engine>> engine = engine::Engine::create(config);
  if (!engine) {
    throw std::runtime_error("engine refused: " + engine.error().text());
  }
  return std::move(*engine);
}

engine::Request greedy_request(std::vector<int32_t> prompt, int32_t max_new_tokens) {
  engine::Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_new_tokens = max_new_tokens;
  request.sampling.ignore_eos = true;
  return request;
}

Answer generate(engine::Engine& engine, engine::Request request) {
  return Pending(engine, std::move(request)).wait();
}

std::vector<uint32_t> logprob_bits(const Answer& answer) {
  std::vector<uint32_t> bits;
  const auto add = [&bits](const engine::PositionLogprobs& position) {
    if (position.token) {
      bits.push_back(std::bit_cast<uint32_t>(position.token->logprob));
    }
    for (const engine::TokenLogprob& entry : position.top) {
      bits.push_back(std::bit_cast<uint32_t>(entry.logprob));
    }
  };
  for (const auto& position : answer.prompt_logprobs) {
    add(position);
  }
  for (const auto& position : answer.logprobs) {
    add(position);
  }
  return bits;
}

}  // namespace nibble::test
