// Modes of single NVFP4 linears by name: what --nvfp4-mode-file holds.
#pragma once

#include <string>
#include <vector>

#include "quant/quant_mode.h"

namespace nibble {

// pattern: as checkpoint/name_pattern.h reads it, of the linear's name in the layer table
// ("model.layers.3.mlp.down_proj", "*.qkv_proj"). The first that matches decides.
struct Nvfp4ModeRule {
  std::string pattern;
  Nvfp4Mode mode = Nvfp4Mode::Auto;
};
using Nvfp4ModeRules = std::vector<Nvfp4ModeRule>;

}  // namespace nibble
