// Channel scales that make weights easier to round without changing the model (AWQ, Lin et al.
// 2023): the columns of the matrices that read an input are multiplied, what produces the input is
// divided. Exact folds only: a norm's weight in front of q, k, v or gate, up, and the rows of up in
// front of down.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "quantize/layer_statistics.h"
#include "quantize/panel.h"
#include "quantize/plan.h"

namespace nibble::quantize {

struct LayerFolds {
  std::map<std::string, std::vector<float>, std::less<>> columns;   // by scale_group(): times
  std::map<std::string, std::vector<float>, std::less<>> rows;      // by module: divided by
  std::map<std::string, std::vector<uint16_t>, std::less<>> norms;  // tensor name -> bf16 values
  std::map<std::string, float, std::less<>> alphas;  // by scale_group(): exponent of mean |x|

  // Applies what concerns this matrix to its [n][k] values.
  void apply(const checkpoint::LinearInfo& info, std::span<float> values, ThreadPool& pool) const;
};

// mean|x|^alpha over the square root of its extremes' product, at most 1024 either way; a channel
// that is always 0 gets 1.
std::vector<float> channel_scale(const std::vector<float>& mean_magnitude, float alpha);

// n' = bf16(n / s), and s = n / n' so that the fold is exact; scales that bf16 cannot divide by
// become 1.
std::vector<uint16_t> fold_norm(const std::vector<uint16_t>& norm, std::vector<float>& scale);

// layer: "model.layers.3". units: the groups of that layer that are quantized.
Result<LayerFolds> choose_folds(const checkpoint::Checkpoint& source,
                                const std::string& layer,
                                const std::vector<const Unit*>& units,
                                const LayerStatistics& statistics,
                                const Compute& compute);

}  // namespace nibble::quantize
