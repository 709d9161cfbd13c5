// How a model is fed a window and scored, for eval.cpp and eval_layers.cpp alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/config.h"
#include "engine/kv_pool.h"
#include "engine/runner.h"
#include "examine/eval.h"
#include "model/model.h"
#include "tensor/device_api.h"

namespace nibble::examine {

inline constexpr int64_t kChunk =
    128;  // tokens a step: bounds the logits that are kept for comparison

// One model fed one window at a time.
class Fed {
 public:
  explicit Fed(StreamOwner stream) : stream_(std::move(stream)) {}
  static Result<std::unique_ptr<Fed>> load(const engine::EngineConfig& config, int64_t window);

  const model::ModelFacts& facts() const { return model_->facts(); }

  void begin(std::span<const int32_t> window);
  bool done() const { return sequence_.computed == sequence_.num_tokens(); }
  int64_t computed() const { return sequence_.computed; }

  // Feeds the next chunk; row(position, logits) for each of its predictions.
  template <typename Row>
  void step(Row&& row) {
    const int64_t count = std::min(kChunk, sequence_.num_tokens() - sequence_.computed);
    engine::Batch batch;
    batch.slices.push_back({&sequence_, sequence_.computed, count, false});
    runner_->run(batch, *pool_, [&](std::span<const engine::LogitRow> rows) {
      for (const engine::LogitRow& one : rows) {
        row(one.position, one.logits);
      }
    });
    sequence_.computed += count;
  }

 private:
  StreamOwner stream_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<engine::KvPool> pool_;
  std::unique_ptr<engine::Runner> runner_;
  engine::Sequence sequence_;
};

// The reference's logits of consecutive predictions, and what every comparison takes from them.
class ReferenceRows {
 public:
  void clear();
  void add(std::span<const float> row);
  std::span<const float> row(size_t i, size_t size) const {
    return std::span<const float>(logits_).subspan(i * size, size);
  }
  double log_total(size_t i) const { return log_totals_[i]; }

 private:
  std::vector<float> logits_;
  std::vector<double> log_totals_;
};

// What one or more windows sum up to.
struct Sums {
  int64_t predictions = 0;
  double nll = 0;
  double kl = 0;
  double reference_nll = 0;
  int64_t same = 0;

  void add(const Sums& other);
  WindowScores scores(bool with_reference) const;
};

// Adds one prediction of the token `next`; `expected` may be null, else its row `at` is the
// reference's.
void add_prediction(std::span<const float> logits,
                    int32_t next,
                    const ReferenceRows* expected,
                    size_t at,
                    Sums& sums);

// Every window has two tokens or more, and there is one.
Result<void> check_windows(const EvalWindows& windows);
Result<void> check_vocabulary(int64_t vocab_size, const EvalWindows& windows);
Result<void> check_context(int64_t context_length, int64_t window);
int64_t longest(const EvalWindows& windows);

}  // namespace nibble::examine
