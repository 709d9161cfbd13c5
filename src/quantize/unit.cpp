#include "quantize/unit.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "quantize/encode.h"
#include "quantize/encode_panels.h"
#include "quantize/factor.h"

namespace nibble::quantize {

using checkpoint::Checkpoint;
using checkpoint::LinearInfo;

namespace {

// Below these, a Hessian of rank `tokens` says too little about k columns.
constexpr int64_t kFewestTokens = 32;
constexpr int64_t kColumnsPerToken = 8;

template <typename T>
StoredTensor stored(std::string name, DType dtype, Shape shape, std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  return {{std::move(name), dtype, shape}, {bytes.begin(), bytes.end()}};
}

// The codes of one matrix with what its input knows; `value_heads` may be null.
class GroupEncoder {
 public:
  GroupEncoder(Method method,
               const InputStatistics& input,
               const std::vector<float>* scale,
               const Compute& compute)
      : method_(method), scale_(scale), compute_(compute) {
    if (method == Method::Sweep) {
      for (size_t i = 0; i < input.mean_square.size(); ++i) {
        const float s = scale == nullptr ? 1.0f : (*scale)[i];
        weight_.push_back(input.mean_square[i] / (s * s));
      }
    } else {
      factored_ = factor_of(input.hessian);
    }
  }

  std::optional<Objective> encode(const LinearInfo& info,
                                  const std::vector<float>& values,
                                  const std::vector<SquareMatrix>* value_heads,
                                  quant::Nvfp4Matrix& out) const {
    const RowRange all{values.data(), 0, info.n};
    if (method_ == Method::Sweep) {
      encode_sweep(all, weight_, kSweepWindow, compute_, out);
      return std::nullopt;
    }
    if (value_heads == nullptr || value_heads->empty()) {
      return encode_gptq(all, factored_, {}, compute_, out);
    }
    Objective total;
    const int64_t rows = info.n / static_cast<int64_t>(value_heads->size());
    for (size_t head = 0; head < value_heads->size(); ++head) {
      const int64_t begin = static_cast<int64_t>(head) * rows;
      const Factored own = factor_of((*value_heads)[head]);
      total.add(encode_gptq({values.data(), begin, begin + rows}, own, {}, compute_, out));
    }
    return total;
  }

 private:
  Factored factor_of(const SquareMatrix& hessian) const {
    return factorize({hessian, scale_}, compute_);
  }

  Method method_;
  const std::vector<float>* scale_;
  const Compute& compute_;
  std::vector<float> weight_;
  Factored factored_;
};

// amax / 2688 of what the group reads after the fold.
float input_scale_of(const InputStatistics& input, const std::vector<float>* scale) {
  float amax = 0.0f;
  for (size_t i = 0; i < input.amax.size(); ++i) {
    amax = std::max(amax, scale == nullptr ? input.amax[i] : input.amax[i] / (*scale)[i]);
  }
  return quant::global_scale_from_amax(amax);
}

const std::vector<float>* find_scale(const LayerFolds* folds, const std::string& group) {
  if (folds == nullptr) {
    return nullptr;
  }
  const auto found = folds->columns.find(group);
  return found == folds->columns.end() ? nullptr : &found->second;
}

void append_matrix(const LinearInfo& info, const quant::Nvfp4Matrix& matrix, UnitResult& result) {
  result.tensors.push_back(stored<uint8_t>(
      info.module + ".weight", DType::U8, {info.n, info.k / 2}, std::span(matrix.codes)));
  result.tensors.push_back(stored<uint8_t>(info.module + ".weight_scale",
                                           DType::E4M3,
                                           {info.n, info.k / quant::kBlockSize},
                                           std::span(matrix.block_scales)));
  result.tensors.push_back(stored<float>(
      info.module + ".weight_scale_2", DType::F32, {}, std::span(&matrix.global_scale, 1)));
}

}  // namespace

Method usable_method(Method wanted, const InputStatistics* input, int64_t k) {
  if (!needs_calibration(wanted)) {
    return wanted;
  }
  if (input == nullptr || input->tokens < kFewestTokens) {
    return Method::FourOverSix;
  }
  return input->tokens < k / kColumnsPerToken ? Method::Sweep : wanted;
}

Result<UnitResult> quantize_unit(const Checkpoint& source,
                                 const Unit& unit,
                                 Method method,
                                 const LayerStatistics* statistics,
                                 const LayerFolds* folds,
                                 const Compute& compute) {
  const std::string group = scale_group(unit.linears.front().module);
  const InputStatistics* input =
      statistics == nullptr ? nullptr : statistics->find(unit.linears.front().module);
  const Method used = usable_method(method, input, unit.linears.front().k);
  std::vector<SourceWeight> weights;
  std::vector<float> amax;
  for (const LinearInfo& info : unit.linears) {
    weights.push_back(TRY(SourceWeight::read(source, info)));
    TRY(weight_amax(weights.back(), compute.pool));
    if (folds != nullptr) {
      weights.back().change([&](std::vector<float>& values) { folds->apply(info, values); });
    }
    amax.push_back(TRY(weight_amax(weights.back(), compute.pool)));
  }
  const float global = global_scale_of(used, *std::max_element(amax.begin(), amax.end()));
  const std::vector<float>* scale = find_scale(folds, group);
  std::optional<GroupEncoder> encoder;
  if (needs_calibration(used)) {
    encoder.emplace(used, *input, scale, compute);
  }
  UnitResult result;
  for (size_t i = 0; i < weights.size(); ++i) {
    const LinearInfo& info = unit.linears[i];
    Encoded encoded;
    std::optional<Objective> objective;
    if (encoder) {
      const std::vector<SquareMatrix>* heads = nullptr;
      if (const auto found = statistics->value_heads.find(info.module);
          found != statistics->value_heads.end()) {
        heads = &found->second;
      }
      encoded.matrix = quant::empty_matrix(info.n, info.k, global);
      objective = encoder->encode(info, weights[i].values(), heads, encoded.matrix);
      encoded.report = report_of(weights[i], amax[i], encoded.matrix, compute.pool);
    } else {
      encoded = encode_weight(weights[i], used, amax[i], global, compute.pool);
    }
    TensorReport& report = encoded.report;
    report.method = used;
    if (objective) {
      report.relative_objective = objective->relative();
      report.descent_gain = objective->before > 0 ? objective->after / objective->before : 1.0;
    }
    if (folds != nullptr) {
      if (const auto alpha = folds->alphas.find(group); alpha != folds->alphas.end()) {
        report.alpha = alpha->second;
      }
    }
    append_matrix(info, encoded.matrix, result);
    if (input != nullptr) {
      report.calibration_tokens = input->tokens;
      const float input_scale = input_scale_of(*input, scale);
      report.input_scale = input_scale;
      result.tensors.push_back(
          stored<float>(info.module + ".input_scale", DType::F32, {}, std::span(&input_scale, 1)));
    }
    result.reports.push_back(std::move(report));
  }
  return result;
}

}  // namespace nibble::quantize
