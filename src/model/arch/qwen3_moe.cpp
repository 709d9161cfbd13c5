// Qwen3-MoE (Qwen3MoeForCausalLM; 30B-A3B, 235B-A22B, Coder): Qwen3's attention; a layer is a
// mixture of experts unless mlp_only_layers lists it or decoder_sparse_step skips it, then it is a
// SwiGLU of intermediate_size. Router:
//   p = softmax(x Wg^T) over all experts; the num_experts_per_tok largest are chosen, and with
//   norm_topk_prob their weights are divided by their sum
#include "model/dense_decoder.h"

namespace nibble::model {

std::unique_ptr<Model> make_qwen3_moe(Builder& builder) {
  const checkpoint::ModelConfig& c = builder.config();
  builder.refuse_sliding_window();
  const Bias attention = c.attention_bias ? Bias::Required : Bias::IfStored;
  MoeTraits moe;
  moe.router.experts = c.moe.num_experts;
  moe.router.topk = c.moe.num_experts_per_tok;
  moe.router.normalize = c.moe.norm_topk_prob;
  moe.ffn = c.moe.moe_intermediate_size;
  return make_dense_decoder(builder,
                            {.qk_norm = true,
                             .qkv_bias = attention,
                             .o_bias = attention,
                             .mlp_bias = Bias::IfStored,
                             .moe = moe});
}

}  // namespace nibble::model
