// Checkpoints that store the experts of a layer stacked in one tensor of three dimensions instead
// of matrix by matrix: `experts.gate_up_proj` [experts, 2 * ffn, hidden] with gate first, or
// `gate_proj` and `up_proj` alone, and `experts.down_proj` [experts, hidden, ffn]; each slice may
// also be stored transposed. NVFP4 stacks have two codes a byte along k and their scales beside
// them as `gate_up_proj_weight_scale` and so on, the global scales one for all, one an expert, or
// two an expert (gate, up). The table gets one row a matrix of an expert, as if they were apart.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace nibble::checkpoint {

struct StackedExperts {
  std::vector<LinearInfo> linears;
  std::vector<Error> errors;  // `where` is the tensor
};

// Looks at headers only. Empty for configs without experts.
StackedExperts find_stacked_experts(const TensorTable& tensors, const ModelConfig& config);

}  // namespace nibble::checkpoint
