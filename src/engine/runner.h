// Runs one batch: device inputs at fixed addresses, the model's forward, the logits of the rows
// that are wanted, handed out on the host a block at a time. Owns scratch memory and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/batch.h"
#include "engine/kv_pool.h"
#include "model/model.h"
#include "tensor/buffer.h"

namespace nibble::engine {

struct RunnerLimits {
  int64_t max_step_tokens = 512;
  int64_t max_seqs = 64;
  int64_t max_pages_per_seq = 0;
};

// A row of logits: of the token at `position` of slice `slice`.
struct LogitRow {
  size_t slice = 0;
  int64_t position = 0;
  std::span<const float> logits;  // [vocab]
};

class Runner {
 public:
  static Result<Runner> create(const model::Model& model,
                               const RunnerLimits& limits,
                               Stream stream);

  // Calls `consume` with every wanted row, blocks of rows at a time, in order: prompt positions
  // from first_logit_position() on, and the last token of slices that sample.
  using Consume = std::function<void(std::span<const LogitRow>)>;
  void run(const Batch& batch, const KvPool& pool, const Consume& consume);

  size_t scratch_bytes() const { return scratch_.size_bytes(); }
  static constexpr int64_t kLogitBlock = 64;  // rows

 private:
  struct Wanted {
    size_t slice;
    int64_t position;
  };
  Runner(const model::Model& model, const RunnerLimits& limits, Stream stream);
  std::vector<Wanted> fill_inputs(const Batch& batch, const KvPool& pool);

  const model::Model* model_;
  RunnerLimits limits_;
  Stream stream_;
  Buffer scratch_;  // arena of forward and head
  Buffer inputs_;   // i32
  Buffer hidden_;   // [max_step_tokens, hidden] bf16
  Buffer logits_;   // [kLogitBlock, vocab] f32
  std::vector<int32_t> host_inputs_;
  std::vector<float> host_logits_;  // unless the device is the host
  model::BatchView view_;
};

}  // namespace nibble::engine
