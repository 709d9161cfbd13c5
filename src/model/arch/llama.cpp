// Llama 2 to 3.3 and SmolLM2 (LlamaForCausalLM). Per layer l, with h the residual stream:
//   a = rms(h); q, k, v = a W^T, rotated over the whole head (llama3 frequency scaling);
//   h += attention(q, k, v) Wo^T; m = rms(h); h += down(silu(gate(m)) * up(m))
// logits = rms(h) W_head^T, the head tied to the embedding in the small ones. attention_bias and
// mlp_bias are false in every released model; where true, all of q, k, v, o (gate, up, down) have a
// bias.
#include "model/dense_decoder.h"

namespace nibble::model {

std::unique_ptr<Model> make_llama(Builder& builder) {
  const Bias attention = builder.config().attention_bias ? Bias::Required : Bias::IfStored;
  const Bias mlp = builder.config().mlp_bias ? Bias::Required : Bias::IfStored;
  return make_dense_decoder(
      builder, {.qk_norm = false, .qkv_bias = attention, .o_bias = attention, .mlp_bias = mlp});
}

}  // namespace nibble::model
