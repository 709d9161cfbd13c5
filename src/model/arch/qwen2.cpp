// Qwen2 and Qwen2.5 dense (Qwen2ForCausalLM): Llama with biases on q, k and v, which no config key
// announces, and optional YaRN. Sliding windows (use_sliding_window true) are refused: every
// released dense model has them off.
#include "model/dense_decoder.h"

namespace nibble::model {

std::unique_ptr<Model> make_qwen2(Builder& builder) {
  builder.refuse_sliding_window();
  return make_dense_decoder(builder,
                            {.qk_norm = false,
                             .qkv_bias = Bias::Required,
                             .o_bias = Bias::IfStored,
                             .mlp_bias = Bias::IfStored});
}

}  // namespace nibble::model
