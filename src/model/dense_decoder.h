// The decoder that Llama, Qwen2, Qwen3 and the mixtures of experts of their shape share: per layer
// norm, attention, norm, and SwiGLU or a mixture of experts, with a residual stream in bf16. The
// architecture files say what differs.
#pragma once

#include <memory>
#include <optional>

#include "model/builder.h"
#include "model/model.h"

namespace nibble::model {

struct DenseTraits {
  bool qk_norm = false;  // RMS norm of every q and k head before the rotation
  Bias qkv_bias = Bias::IfStored;
  Bias o_bias = Bias::IfStored;
  Bias mlp_bias = Bias::IfStored;
  std::optional<MoeTraits> moe = std::nullopt;  // of the layers that the config makes sparse
};

std::unique_ptr<Model> make_dense_decoder(Builder& builder, const DenseTraits& traits);

}  // namespace nibble::model
