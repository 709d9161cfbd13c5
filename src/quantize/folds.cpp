#include "quantize/folds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "base/number_formats.h"
#include "quantize/encode.h"
#include "quantize/encode_panels.h"
#include "quantize/factor.h"

namespace nibble::quantize {

using checkpoint::Checkpoint;
using checkpoint::LinearInfo;

namespace {

constexpr std::array<float, 5> kAlphas = {0.0f, 0.1f, 0.2f, 0.3f, 0.45f};
// The search weighs errors by their effect on q, k, v, but attention's own response is not in it:
// larger exponents win there and lose in the model.
constexpr float kMaxAttentionAlpha = 0.3f;
// Of a channel scale, both ways. Means would have to span 1e13 to get there, and then the fold
// would push weights out of what NVFP4 can be read in.
constexpr float kMaxScale = 1024.0f;
constexpr int64_t kSearchPanels = 8;  // at most so many of a matrix are looked at

Result<std::vector<SourceWeight>> read_weights(const Checkpoint& source,
                                               const Unit& unit,
                                               const LayerFolds& folds,
                                               const Compute& compute) {
  std::vector<SourceWeight> weights;
  for (const LinearInfo& info : unit.linears) {
    SourceWeight weight = TRY(SourceWeight::read(source, info, compute.blocks));
    weight.widen(compute.pool);
    folds.apply(info, weight.values(), compute.pool);
    weights.push_back(std::move(weight));
  }
  return weights;
}

float amax_of(const std::vector<SourceWeight>& weights,
              const std::vector<float>& scale,
              ThreadPool& pool) {
  std::vector<float> amax(static_cast<size_t>(pool.num_threads()), 0.0f);
  for (const SourceWeight& weight : weights) {
    const int64_t k = weight.info().k;
    pool.parallel_for(weight.info().n, 1, [&](int64_t begin, int64_t end, int thread) {
      float largest = 0.0f;
      for (int64_t row = begin; row < end; ++row) {
        const float* values = weight.values().data() + row * k;
        for (int64_t i = 0; i < k; ++i) {
          largest = std::max(largest, std::fabs(values[i] * scale[static_cast<size_t>(i)]));
        }
      }
      amax[static_cast<size_t>(thread)] = std::max(amax[static_cast<size_t>(thread)], largest);
    });
  }
  return *std::max_element(amax.begin(), amax.end());
}

struct Rows {
  int64_t n = 0;
  AlignedFloats values;  // [n][k]
};

// Every `step`-th panel of the matrix with scaled columns.
Rows sampled(const SourceWeight& weight, const std::vector<float>& scale, const Compute& compute) {
  const auto [n, k] = std::pair(weight.info().n, weight.info().k);
  const int64_t panels = (n + kLanes - 1) / kLanes;
  const int64_t step = (panels + kSearchPanels - 1) / kSearchPanels;
  std::vector<int64_t> rows;
  for (int64_t panel = 0; panel < panels; panel += step) {
    for (int64_t row = panel * kLanes; row < std::min(n, (panel + 1) * kLanes); ++row) {
      rows.push_back(row);
    }
  }
  Rows result{static_cast<int64_t>(rows.size()),
              AlignedFloats(rows.size() * scale.size(), compute.blocks)};
  compute.pool.parallel_for(result.n, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    for (int64_t row = begin; row < end; ++row) {
      const float* values = weight.values().data() + rows[static_cast<size_t>(row)] * k;
      float* out = result.values.data() + row * k;
      for (int64_t i = 0; i < k; ++i) {
        out[i] = values[i] * scale[static_cast<size_t>(i)];
      }
    }
  });
  return result;
}

// The loss of rounding the scaled matrices, by a weighted sweep or by GPTQ. blocks: memory to work
// in, kept from call to call. Infinite where the scale takes the Hessian out of FP32 or the weights
// out of what NVFP4 can be read in: activations span too much for it.
double loss_of(const std::vector<SourceWeight>& weights,
               const std::vector<float>& scale,
               const SquareMatrix& hessian,
               bool with_gptq,
               const Compute& compute,
               BlockMatrix& blocks) {
  const ScaledHessian scaled{hessian, &scale};
  const float global = quant::global_scale_from_amax(amax_of(weights, scale, compute.pool));
  if (global > checkpoint::kMaxGlobalScale) {
    return std::numeric_limits<double>::infinity();
  }
  Factored factored;
  std::vector<float> energy;  // of the columns
  if (with_gptq) {
    auto made = factorize(scaled, compute);
    if (!made) {
      return std::numeric_limits<double>::infinity();
    }
    factored = *std::move(made);
  } else {
    blocks = blocks_of(scaled, compute, std::move(blocks));
    for (int64_t i = 0; i < hessian.n(); ++i) {
      energy.push_back(scaled.at(i, i));
    }
  }
  double loss = 0;
  for (const SourceWeight& weight : weights) {
    const Rows part = sampled(weight, scale, compute);
    const RowRange rows{part.values.data(), 0, part.n};
    quant::Nvfp4Matrix out = quant::empty_matrix(part.n, weight.info().k, global);
    if (with_gptq) {
      const GptqOptions options{.window = kGptqWindow, .rounds = 0, .measure_weights = false};
      loss += encode_gptq(rows, factored, options, compute, out).after;
    } else {
      encode_sweep(rows, energy, kSweepWindow, compute, out);
      loss += measure(rows, out, blocks, compute);
    }
  }
  return loss;
}

// The exponent with the smallest loss; the smaller of equals.
float best_alpha(const std::vector<SourceWeight>& weights,
                 const InputStatistics& input,
                 float largest,
                 bool with_gptq,
                 const Compute& compute) {
  float best = 0.0f;
  double best_loss = std::numeric_limits<double>::infinity();
  BlockMatrix blocks;
  for (const float alpha : kAlphas) {
    if (alpha > largest) {
      continue;
    }
    const double loss = loss_of(weights,
                                channel_scale(input.mean_magnitude, alpha),
                                input.hessian,
                                with_gptq,
                                compute,
                                blocks);
    if (loss < best_loss) {
      best_loss = loss;
      best = alpha;
    }
  }
  return best;
}

const Unit* find_unit(const std::vector<const Unit*>& units,
                      const std::string& module,
                      size_t num_linears) {
  for (const Unit* unit : units) {
    if (unit->linears.size() == num_linears &&
        std::any_of(unit->linears.begin(), unit->linears.end(), [&](const LinearInfo& info) {
          return info.module == module;
        })) {
      return unit;
    }
  }
  return nullptr;
}

Result<std::vector<uint16_t>> read_norm(const Checkpoint& source,
                                        const std::string& name,
                                        int64_t width) {
  const auto bytes = TRY(source.read_as(name, DType::BF16, Shape{width}, "hidden_size"));
  std::vector<uint16_t> values(bytes.size() / sizeof(uint16_t));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// The norm in front of a group whose every reader is in `unit`.
Result<void> fold_into_norm(const Checkpoint& source,
                            const std::string& norm,
                            const Unit& unit,
                            const InputStatistics& input,
                            bool attention,
                            const Compute& compute,
                            LayerFolds& folds) {
  const int64_t k = unit.linears.front().k;
  if (source.find(norm) == nullptr) {
    return {};
  }
  const auto weights = TRY(read_weights(source, unit, folds, compute));
  const float alpha =
      best_alpha(weights, input, attention ? kMaxAttentionAlpha : 1.0f, attention, compute);
  const std::string group = scale_group(unit.linears.front().module);
  folds.alphas[group] = alpha;
  if (alpha == 0.0f) {
    return {};
  }
  std::vector<float> scale = channel_scale(input.mean_magnitude, alpha);
  folds.norms[norm] = fold_norm(TRY(read_norm(source, norm, k)), scale);
  folds.columns[group] = std::move(scale);
  return {};
}

Result<void> fold_down_into_up(const Checkpoint& source,
                               const Unit& down,
                               const std::string& up,
                               const InputStatistics& input,
                               const Compute& compute,
                               LayerFolds& folds) {
  const auto weights = TRY(read_weights(source, down, folds, compute));
  const float alpha = best_alpha(weights, input, 1.0f, false, compute);
  const std::string& module = down.linears.front().module;
  folds.alphas[scale_group(module)] = alpha;
  if (alpha > 0.0f) {
    folds.columns[scale_group(module)] = channel_scale(input.mean_magnitude, alpha);
    folds.rows[up] = folds.columns[scale_group(module)];
  }
  return {};
}

}  // namespace

void LayerFolds::apply(const LinearInfo& info, std::span<float> values, ThreadPool& pool) const {
  const auto divided = rows.find(info.module);
  const auto multiplied = columns.find(scale_group(info.module));
  if (divided == rows.end() && multiplied == columns.end()) {
    return;
  }
  pool.parallel_for(info.n, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    for (int64_t row = begin; row < end; ++row) {
      const auto line =
          values.subspan(static_cast<size_t>(row * info.k), static_cast<size_t>(info.k));
      if (divided != rows.end()) {
        for (float& value : line) {
          value /= divided->second[static_cast<size_t>(row)];
        }
      }
      if (multiplied != columns.end()) {
        for (size_t i = 0; i < line.size(); ++i) {
          line[i] *= multiplied->second[i];
        }
      }
    }
  });
}

std::vector<float> channel_scale(const std::vector<float>& mean_magnitude, float alpha) {
  std::vector<float> scale;
  float smallest = std::numeric_limits<float>::infinity();
  float largest = 0.0f;
  for (const float mean : mean_magnitude) {
    scale.push_back(mean > 0.0f ? std::pow(mean, alpha) : 0.0f);
    if (mean > 0.0f) {
      smallest = std::min(smallest, scale.back());
      largest = std::max(largest, scale.back());
    }
  }
  const float middle = std::sqrt(smallest * largest);
  for (float& value : scale) {
    value =
        value > 0.0f && middle > 0.0f ? std::clamp(value / middle, 1 / kMaxScale, kMaxScale) : 1.0f;
  }
  return scale;
}

std::vector<uint16_t> fold_norm(const std::vector<uint16_t>& norm, std::vector<float>& scale) {
  std::vector<uint16_t> folded;
  for (size_t i = 0; i < norm.size(); ++i) {
    const float before = bf16_to_float(norm[i]);
    uint16_t bits = float_to_bf16(before / scale[i]);
    const float after = bf16_to_float(bits);
    const float exact = before / after;
    if (before == 0.0f || !std::isfinite(exact) || exact <= 0.0f) {
      bits = norm[i];
      scale[i] = 1.0f;
    } else {
      scale[i] = exact;
    }
    folded.push_back(bits);
  }
  return folded;
}

Result<LayerFolds> choose_folds(const Checkpoint& source,
                                const std::string& layer,
                                const std::vector<const Unit*>& units,
                                const LayerStatistics& statistics,
                                const Compute& compute) {
  LayerFolds folds;
  const std::string attention = layer + ".self_attn.";
  const std::string mlp = layer + ".mlp.";
  const Unit* qkv = find_unit(units, attention + "q_proj", 3);
  const Unit* gate_up = find_unit(units, mlp + "up_proj", 2);
  const Unit* down = find_unit(units, mlp + "down_proj", 1);
  if (qkv != nullptr) {
    if (const InputStatistics* input = statistics.find(attention + "q_proj")) {
      TRY(fold_into_norm(
          source, layer + ".input_layernorm.weight", *qkv, *input, true, compute, folds));
    }
  }
  if (gate_up != nullptr && down != nullptr) {
    if (const InputStatistics* input = statistics.find(mlp + "down_proj")) {
      TRY(fold_down_into_up(source, *down, mlp + "up_proj", *input, compute, folds));
    }
  }
  if (gate_up != nullptr) {
    if (const InputStatistics* input = statistics.find(mlp + "up_proj")) {
      TRY(fold_into_norm(source,
                         layer + ".post_attention_layernorm.weight",
                         *gate_up,
                         *input,
                         false,
                         compute,
                         folds));
    }
  }
  return folds;
}

}  // namespace nibble::quantize
