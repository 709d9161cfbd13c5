// The dense decoder that Llama, Qwen2 and Qwen3 share: per layer norm, attention, norm, SwiGLU,
// with a residual stream in bf16. The architecture files say what differs.
#pragma once

#include <memory>
#include <vector>

#include "model/builder.h"
#include "model/model.h"

namespace nibble::model {

struct DenseTraits {
  bool qk_norm = false;  // RMS norm of every q and k head before the rotation
  Bias qkv_bias = Bias::IfStored;
  Bias o_bias = Bias::IfStored;
  Bias mlp_bias = Bias::IfStored;
};

std::unique_ptr<Model> make_dense_decoder(Builder& builder, const DenseTraits& traits);

}  // namespace nibble::model
