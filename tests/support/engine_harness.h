// Submits requests to an engine and waits for their answers.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace nibble::test {

// All Outputs of one request, joined.
struct Answer {
  engine::RequestId id = 0;
  std::vector<int32_t> tokens;
  std::vector<engine::PositionLogprobs> logprobs;
  std::vector<engine::PositionLogprobs> prompt_logprobs;
  std::vector<std::string> versions;  // of each token
  engine::Output last;
};

// A request under way.
class Pending {
 public:
  Pending(engine::Engine& engine, engine::Request request);
  engine::RequestId id() const { return id_; }
  // Blocks until at least `count` tokens have arrived, or it has finished.
  void wait_for_tokens(size_t count);
  Answer wait();

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    Answer answer;
    bool done = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
  engine::RequestId id_ = 0;
};

// Where tests of the engine run: the CPU, or what --nibble_device=cuda on the command line says.
Device test_device();

engine::EngineConfig tiny_config(const std::string& directory);
std::unique_ptr<engine::Engine> start_engine(const engine::EngineConfig& config);
engine::Request greedy_request(std::vector<int32_t> prompt, int32_t max_new_tokens);
Answer generate(engine::Engine& engine, engine::Request request);
// Logprobs as bits, for exact comparison.
std::vector<uint32_t> logprob_bits(const Answer& answer);

}  // namespace nibble::test
