// Mixtral 8x7B and 8x22B (MixtralForCausalLM): Llama's attention; every layer is a mixture of
// experts, w1 the gate, w3 up and w2 down. The router is softmax over all experts, the largest
// chosen, their weights divided by their sum. Sliding windows are refused: every released model has
// them off.
#include "model/dense_decoder.h"

namespace nibble::model {

std::unique_ptr<Model> make_mixtral(Builder& builder) {
  const checkpoint::ModelConfig& c = builder.config();
  builder.refuse_sliding_window();
  MoeTraits moe;
  moe.block = "block_sparse_moe";
  moe.gate = "w1";
  moe.up = "w3";
  moe.down = "w2";
  moe.router.experts = c.moe.num_experts;
  moe.router.topk = c.moe.num_experts_per_tok;
  moe.router.normalize = c.moe.norm_topk_prob;
  moe.ffn = c.moe.moe_intermediate_size;
  moe.ffn_key = "intermediate_size";
  return make_dense_decoder(builder,
                            {.qk_norm = false,
                             .qkv_bias = Bias::IfStored,
                             .o_bias = Bias::IfStored,
                             .mlp_bias = Bias::IfStored,
                             .moe = moe});
}

}  // namespace nibble::model
