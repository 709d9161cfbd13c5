// Checkpoints that store q, k, v or gate, up as one matrix (Phi-3, Phi-4): the table gets one row a
// part, so that models never meet the fused name.
#pragma once

#include <vector>

#include "checkpoint/checkpoint.h"

namespace nibble::checkpoint {

// Replaces qkv_proj by q_proj, k_proj, v_proj and gate_up_proj by gate_proj, up_proj where the row
// counts of the config add up to the stored ones. Sorted by module in and out.
std::vector<LinearInfo> split_fused_linears(std::vector<LinearInfo> linears,
                                            const ModelConfig& config);

}  // namespace nibble::checkpoint
