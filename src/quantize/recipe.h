// Which linears become NVFP4, and which of them share one global scale.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

namespace nibble::quantize {

class Recipe {
 public:
  // extra_excludes: patterns (checkpoint/name_pattern.h) of modules to keep besides the usual ones.
  static Result<Recipe> make(const std::vector<std::string>& extra_excludes);

  // Why a linear stays in full precision; "" when it is quantized.
  std::string reason_to_keep(const checkpoint::LinearInfo& info,
                             const checkpoint::ModelConfig& config) const;

 private:
  struct Exclusion {
    checkpoint::NamePattern pattern;
    std::string reason;
  };
  std::vector<Exclusion> exclusions_;
};

// Linears that read the same input and run as one matrix share their global scale: q, k, v; gate,
// up; w1, w3 of an expert; the down-projections of latent attention; the in-projections of linear
// attention. Members of one group have equal keys; a linear outside every group is its own key.
std::string scale_group(std::string_view module);

}  // namespace nibble::quantize
