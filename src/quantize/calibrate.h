// Statistics of the inputs of every matrix, from a BF16 forward of the source model on the CPU: one
// layer's weights and statistics in memory at a time, the hidden states of all tokens between
// layers. One owner thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "quantize/layer_statistics.h"
#include "quantize/method.h"
#include "tensor/buffer.h"

namespace nibble::quantize {

inline constexpr int64_t kSegmentTokens = 512;

class Calibrator {
 public:
  // tokens: cut into segments of kSegmentTokens (one shorter one when there are fewer), each a
  // sequence of its own; the rest is dropped. Fails when there are too few or one is out of the
  // vocabulary. blocks: memory for the statistics, outlives them; may be null.
  static Result<std::unique_ptr<Calibrator>> create(const checkpoint::Checkpoint& source,
                                                    std::span<const int32_t> tokens,
                                                    Method method,
                                                    int num_threads,
                                                    LargeBlocks* blocks = nullptr);
  ~Calibrator();

  int64_t num_tokens() const;
  // Runs layer `layer`, the one after those that ran, over all segments and returns what the
  // groups in `wanted` (scale_group()) read. Without statistics when `wanted` is empty.
  // progress(tokens done) may be empty.
  Result<LayerStatistics> run_layer(int64_t layer,
                                    const std::set<std::string, std::less<>>& wanted,
                                    const std::function<void(int64_t)>& progress);

  // Of a model's last norm over the states after all layers: the largest magnitude that the output
  // head reads. Nothing where the source has no norm of the usual name.
  Result<std::optional<float>> head_input_amax();

  // The state between layers: hidden states [tokens, hidden] bf16.
  std::span<const uint16_t> hidden() const;
  Result<void> restore(std::vector<uint16_t> hidden);

 private:
  struct State;

 public:
  explicit Calibrator(std::unique_ptr<State> state);  // for create()

 private:
  std::unique_ptr<State> state_;
};

}  // namespace nibble::quantize
