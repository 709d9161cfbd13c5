// Qwen3 dense (Qwen3ForCausalLM): Llama with an explicit head_dim (heads * head_dim need not be
// hidden_size) and an RMS norm over every q and k head before the rotation, one weight vector of
// head_dim for all heads.
#include "model/dense_decoder.h"

namespace nibble::model {

std::unique_ptr<Model> make_qwen3(Builder& builder) {
  builder.refuse_sliding_window();
  const Bias attention = builder.config().attention_bias ? Bias::Required : Bias::IfStored;
  return make_dense_decoder(
      builder,
      {.qk_norm = true, .qkv_bias = attention, .o_bias = attention, .mlp_bias = Bias::IfStored});
}

}  // namespace nibble::model
