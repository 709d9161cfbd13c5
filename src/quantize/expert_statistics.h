// Statistics of a mixture of experts: each expert's matrices read the tokens that were routed to
// it, and its down projection what its own gate and up make of them. The tokens of a layer are kept
// until all have been seen, so that one expert's weights are in memory at a time.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "model/parameter_store.h"
#include "quantize/layer_statistics.h"
#include "quantize/panel.h"
#include "tensor/tensor.h"

namespace nibble::quantize {

class ExpertTokens {
 public:
  // x: [tokens, hidden] bf16; ids: [tokens, topk] i32. The same layer every time.
  void add(const model::ExpertsSpec& spec, const Tensor& x, const Tensor& ids);

  // Adds the inputs of the wanted groups of every expert.
  Result<void> finish(const checkpoint::Checkpoint& source,
                      const std::set<std::string, std::less<>>& wanted,
                      bool hessian,
                      const Compute& compute,
                      LayerStatistics& statistics) const;

 private:
  const model::ExpertsSpec* spec_ = nullptr;
  int64_t hidden_ = 0;
  std::vector<uint16_t> x_;                   // [tokens, hidden] bf16
  std::vector<std::vector<int64_t>> tokens_;  // of each expert
};

// What down reads: act(gate x) * up x, rounded to bf16 as the forward does. weights: [ffn][hidden]
// f32, ffn a multiple of 8, gate empty where there is none; returns [rows, ffn] bf16.
std::vector<uint16_t> expert_inner(const std::vector<float>& gate,
                                   const std::vector<float>& up,
                                   int64_t ffn,
                                   int64_t hidden,
                                   const std::vector<const uint16_t*>& rows,
                                   const Compute& compute);

}  // namespace nibble::quantize
