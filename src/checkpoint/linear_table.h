// The per-linear table: which tensors belong to one linear, and what their dtypes and shapes say it
// is. Looks at headers only; the values of scales are checked by Checkpoint.
#pragma once

#include <map>
#include <string>
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

}  // namespace nibble::checkpoint
