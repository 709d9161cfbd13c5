// Statistics of everything that one layer's matrices read.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/quantize_rules.h"
#include "quantize/statistics.h"

namespace nibble::quantize {

using checkpoint::scale_group;

struct LayerStatistics {
  std::map<std::string, InputStatistics, std::less<>> inputs;  // by scale_group() of its readers
  // v_proj's own Hessians, one a KV head: what its rows are multiplied with after attention has
  // averaged the tokens. By module.
  std::map<std::string, std::vector<SquareMatrix>, std::less<>> value_heads;

  const InputStatistics* find(std::string_view module) const {
    const auto found = inputs.find(scale_group(module));
    return found == inputs.end() ? nullptr : &found->second;
  }
};

}  // namespace nibble::quantize
