// Looks at what a forward computes on: calibration collects its statistics here. Called by the
// layers on the thread that runs them, before the products, never while the arena measures. Tensors
// are valid during the call only.
#pragma once

#include "model/parameter_store.h"
#include "ops/attention.h"
#include "tensor/tensor.h"

namespace nibble::model {

class Observer {
 public:
  virtual ~Observer() = default;
  // x: [tokens, k] bf16, the input of the product.
  virtual void linear(const LinearSpec& spec, const Tensor& x) = 0;
  // Rotated q: [tokens, heads, head_dim], k: [tokens, kv_heads, head_dim] bf16, strided; x: the
  // input of `qkv`, [tokens, hidden] bf16.
  virtual void attention(const LinearSpec& qkv,
                         const AttentionDesc& desc,
                         const Tensor& q,
                         const Tensor& k,
                         const Tensor& x) = 0;
  // x: [tokens, hidden] bf16; ids: [tokens, topk] i32, the experts of each token.
  virtual void experts(const ExpertsSpec& spec, const Tensor& x, const Tensor& ids) = 0;
};

}  // namespace nibble::model
