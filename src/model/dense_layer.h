// One layer of the dense decoder (model/dense_decoder.h): norm, attention, norm, and SwiGLU or a
// mixture of experts.
#pragma once

#include <variant>

#include "model/layers.h"
#include "model/moe_block.h"

namespace nibble::model {

struct DenseLayer {
  Norm input_norm;
  Attention attention;
  Norm post_attention_norm;
  std::variant<SwiGluMlp, MoeBlock> ffn;
};

}  // namespace nibble::model
