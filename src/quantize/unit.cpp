#include "quantize/unit.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "quantize/encode.h"
#include "quantize/encode_panels.h"
#include "quantize/factor.h"
#include "quantize/fp8_weights.h"

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
  // group: for errors.
  static Result<GroupEncoder> make(Method method,
                                   const InputStatistics& input,
                                   const std::vector<float>* scale,
                                   const std::string& group,
                                   const Compute& compute) {
    GroupEncoder encoder(method, scale, compute);
    if (method == Method::Sweep) {
      for (size_t i = 0; i < input.mean_square.size(); ++i) {
        const float s = scale == nullptr ? 1.0f : (*scale)[i];
        encoder.weight_.push_back(input.mean_square[i] / (s * s));
      }
    } else {
      encoder.factored_ = TRY(encoder.factor_of(input.hessian, group));
    }
    return encoder;
  }

  Result<std::optional<Objective>> encode(const LinearInfo& info,
                                          std::span<const float> values,
                                          const std::vector<SquareMatrix>* value_heads,
                                          quant::Nvfp4Matrix& out) const {
    const RowRange all{values.data(), 0, info.n};
    if (method_ == Method::Sweep) {
      encode_sweep(all, weight_, kSweepWindow, compute_, out);
      return std::optional<Objective>();
    }
    if (value_heads == nullptr || value_heads->empty()) {
      return std::optional(encode_gptq(all, factored_, {}, compute_, out));
    }
    Objective total;
    const int64_t rows = info.n / static_cast<int64_t>(value_heads->size());
    for (size_t head = 0; head < value_heads->size(); ++head) {
      const int64_t begin = static_cast<int64_t>(head) * rows;
      const Factored own = TRY(factor_of((*value_heads)[head], info.module));
      total.add(encode_gptq({values.data(), begin, begin + rows}, own, {}, compute_, out));
    }
    return std::optional(total);
  }

 private:
  GroupEncoder(Method method, const std::vector<float>* scale, const Compute& compute)
      : method_(method), scale_(scale), compute_(compute) {}

  Result<Factored> factor_of(const SquareMatrix& hessian, const std::string& name) const {
    return factorize({hessian, scale_}, compute_).map_error([&](Error error) {
      error.where = name;
      return error;
    });
  }

  Method method_;
  const std::vector<float>* scale_;
  const Compute& compute_;
  std::vector<float> weight_;
  Factored factored_;
};

// The largest input of the group after the fold.
float input_amax(const InputStatistics& input, const std::vector<float>* scale) {
  float amax = 0.0f;
  for (size_t i = 0; i < input.amax.size(); ++i) {
    amax = std::max(amax, scale == nullptr ? input.amax[i] : input.amax[i] / (*scale)[i]);
  }
  return amax;
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

std::optional<float> find_alpha(const LayerFolds& folds, const std::string& group) {
  const auto found = folds.alphas.find(group);
  return found == folds.alphas.end() ? std::nullopt : std::optional(found->second);
}

// What calibration knows about a unit; anything may be null.
struct Known {
  const LayerStatistics* statistics;
  const InputStatistics* input;
  const LayerFolds* folds;
  const std::vector<float>* scale;  // of the columns
};

// Fails when no reader would take the group's global scale for what it is.
Result<float> readable_global_scale(Method method,
                                    const std::vector<SourceWeight>& weights,
                                    const std::vector<float>& amax) {
  const auto largest = std::max_element(amax.begin(), amax.end());
  const float global = global_scale_of(method, *largest);
  if (*largest > 0.0f &&
      (global > checkpoint::kMaxGlobalScale || global < checkpoint::kMinGlobalScale)) {
    const float per_magnitude = global_scale_of(method, 1.0f);
    return invalid(fmt::format("its largest magnitude is {:.4g}, NVFP4 is written for {:.4g} to "
                               "{:.4g}: is the file damaged? --exclude or --fp8 takes it as it is",
                               *largest,
                               checkpoint::kMinGlobalScale / per_magnitude,
                               checkpoint::kMaxGlobalScale / per_magnitude),
                   weights[static_cast<size_t>(largest - amax.begin())].info().weight);
  }
  return global;
}

Result<void> append_nvfp4(const Unit& unit,
                          Method method,
                          const std::vector<SourceWeight>& weights,
                          const std::vector<float>& amax,
                          const Known& known,
                          const Compute& compute,
                          UnitResult& result) {
  const float global = TRY(readable_global_scale(method, weights, amax));
  std::optional<GroupEncoder> encoder;
  if (needs_calibration(method)) {
    encoder.emplace(TRY(GroupEncoder::make(
        method, *known.input, known.scale, scale_group(unit.linears.front().module), compute)));
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    const LinearInfo& info = unit.linears[i];
    Encoded encoded;
    if (encoder) {
      const auto heads = known.statistics->value_heads.find(info.module);
      encoded.matrix = quant::empty_matrix(info.n, info.k, global);
      const std::optional<Objective> objective = TRY(
          encoder->encode(info,
                          weights[i].values(),
                          heads == known.statistics->value_heads.end() ? nullptr : &heads->second,
                          encoded.matrix));
      encoded.report = report_of(weights[i], amax[i], encoded.matrix, compute.pool);
      if (objective) {
        encoded.report.relative_objective = objective->relative();
        encoded.report.descent_gain =
            objective->before > 0 ? objective->after / objective->before : 1.0;
      }
    } else {
      encoded = encode_weight(weights[i], method, amax[i], global, compute.pool);
    }
    append_matrix(info, encoded.matrix, result);
    if (known.input != nullptr) {
      const float input_scale =
          quant::global_scale_from_amax(input_amax(*known.input, known.scale));
      encoded.report.input_scale = input_scale;
      result.tensors.push_back(
          stored<float>(info.module + ".input_scale", DType::F32, {}, std::span(&input_scale, 1)));
    }
    result.reports.push_back(std::move(encoded.report));
  }
  return {};
}

// The FP8 form of a unit.
void append_fp8(const std::vector<SourceWeight>& weights,
                const std::vector<float>& amax,
                std::optional<float> largest_input,
                const Compute& compute,
                UnitResult& result) {
  const float scale = fp8_scale(*std::max_element(amax.begin(), amax.end()));
  const std::string suffix(kFp8Suffix);
  for (size_t i = 0; i < weights.size(); ++i) {
    const LinearInfo& info = weights[i].info();
    const Fp8Matrix matrix = encode_fp8(weights[i], scale, compute.pool);
    result.tensors.push_back(stored<uint8_t>(
        info.module + ".weight" + suffix, DType::E4M3, {info.n, info.k}, std::span(matrix.codes)));
    result.tensors.push_back(stored<float>(
        info.module + ".weight_scale" + suffix, DType::F32, {}, std::span(&matrix.scale, 1)));
    TensorReport report;
    report.module = info.module;
    report.n = info.n;
    report.k = info.k;
    report.precision = Precision::Fp8;
    report.amax = amax[i];
    report.global_scale = matrix.scale;
    report.relative_error = matrix.relative_error;
    report.max_error = matrix.max_error;
    if (largest_input) {
      const float input_scale = fp8_scale(*largest_input);
      report.input_scale = input_scale;
      result.tensors.push_back(stored<float>(
          info.module + ".input_scale" + suffix, DType::F32, {}, std::span(&input_scale, 1)));
    }
    result.reports.push_back(std::move(report));
  }
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
    weights.push_back(TRY(SourceWeight::read(source, info, compute.blocks)));
    TRY(weight_amax(weights.back(), compute.pool));
    if (folds != nullptr || needs_calibration(used)) {
      weights.back().widen(compute.pool);
    }
    if (folds != nullptr) {
      folds->apply(info, weights.back().values(), compute.pool);
    }
    amax.push_back(TRY(weight_amax(weights.back(), compute.pool)));
  }
  const std::vector<float>* scale = find_scale(folds, group);
  UnitResult result;
  if (unit.nvfp4) {
    TRY(append_nvfp4(
        unit, used, weights, amax, {statistics, input, folds, scale}, compute, result));
  }
  if (unit.fp8) {
    append_fp8(weights,
               amax,
               input == nullptr ? std::nullopt : std::optional(input_amax(*input, scale)),
               compute,
               result);
  }
  const auto alpha = folds == nullptr ? std::optional<float>() : find_alpha(*folds, group);
  for (TensorReport& report : result.reports) {
    report.method = used;
    report.alpha = alpha;
    report.calibration_tokens = input == nullptr ? 0 : input->tokens;
  }
  return result;
}

}  // namespace nibble::quantize
