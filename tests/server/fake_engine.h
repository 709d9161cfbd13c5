// An engine without a model: a thread that answers every request with scripted tokens, one token a
// request and step, so that the server can be tested without weights.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace nibble::test {

inline constexpr int32_t kEos = 256;
inline constexpr int64_t kFakeVocab = 260;
inline constexpr int64_t kFakeContext = 200;

class FakeEngine final : public engine::Engine {
 public:
  FakeEngine();
  ~FakeEngine() override;

  // The answer to a prompt: bytes are token ids; kEos follows. Default: the prompt again.
  using Script = std::function<std::string(const std::vector<int32_t>& prompt)>;
  void set_script(Script script);
  // Holds the generation before the next token until released; starts released.
  void hold();
  void release();
  void fail_requests(Error error);  // from now on every request ends with this error

  std::vector<engine::SamplingParams> seen() const;  // of all submitted requests
  size_t num_aborts() const;                         // that hit a running request

  const engine::ModelInfo& info() const override { return info_; }
  Result<engine::RequestId> submit(engine::Request request) override;
  void abort(engine::RequestId id) override;
  void abort_all() override;
  engine::Load load() const override;
  bool healthy() const override { return true; }

  engine::WeightsInfo weights() const override;
  Result<engine::WeightUpdateReport> update_weights(const engine::WeightUpdate& update) override;
  Result<void> set_weight_version(const std::string& version) override;
  Result<void> pause(engine::PauseMode mode) override;
  Result<void> resume() override;
  Result<void> flush_cache(double timeout_seconds) override;
  Result<void> release_memory(const std::vector<engine::MemoryTag>& tags) override;
  Result<void> resume_memory(const std::vector<engine::MemoryTag>& tags) override;
  Result<std::vector<engine::WeightChecksum>> weight_checksums() override;

 private:
  struct Running {
    engine::Request request;
    std::string answer;
    size_t done = 0;
    bool aborted = false;
  };
  void run();
  void step(Running& running);  // mutex_ held

  engine::ModelInfo info_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<engine::RequestId, Running> running_;
  std::vector<engine::SamplingParams> seen_;
  Script script_;
  std::optional<Error> failure_;
  engine::WeightsInfo weights_;
  engine::RequestId next_id_ = 1;
  int64_t generated_ = 0;
  size_t num_aborts_ = 0;
  bool held_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace nibble::test
