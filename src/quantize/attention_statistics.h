// The Hessians of v_proj: attention averages the tokens before v is used, so what v's rows of one
// KV head are really multiplied with is A X, with A the attention probabilities of the query heads
// that share it and X the input of the layer's attention. Those heads take turns: each kLanes
// queries count with one of them, so a KV head has a row for every token, as other inputs have.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/attention.h"
#include "quantize/panel.h"
#include "quantize/statistics.h"
#include "tensor/tensor.h"

namespace nibble::quantize {

// q: [tokens, heads, head_dim], k: [tokens, kv_heads, head_dim] bf16, rotated; x: [tokens, hidden]
// bf16; one whole sequence, tokens a multiple of kLanes. heads: one collector a KV head.
void add_value_statistics(const AttentionDesc& desc,
                          const Tensor& q,
                          const Tensor& k,
                          const Tensor& x,
                          const Compute& compute,
                          std::vector<StatisticsCollector>& heads);

}  // namespace nibble::quantize
