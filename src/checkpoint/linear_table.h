// The per-linear table: which tensors belong to one linear, and what their dtypes and shapes say it
// is. Looks at headers only; the values of scales are checked by Checkpoint.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace nibble::checkpoint {

struct LinearTable {
  std::vector<LinearInfo> linears;                   // sorted by module
  std::map<std::string, Error, std::less<>> errors;  // modules that cannot be used
  std::vector<Error> warnings;
};

LinearTable build_linear_table(const TensorTable& tensors,
                               const QuantConfig& quant,
                               const ModelConfig& config);

// "model.embed_tokens.weight" and the like.
bool is_embedding_table(std::string_view tensor);

// False for draft layers (past num_hidden_layers, or named mtp) and towers of other modalities,
// which text generation does not touch: what is wrong with them is no reason to refuse a
// checkpoint.
bool runs_for_text(std::string_view module, const ModelConfig& config);

}  // namespace nibble::checkpoint
