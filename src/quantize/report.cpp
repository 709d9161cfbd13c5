#include "quantize/report.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/json.h"

namespace nibble::quantize {

namespace json = boost::json;

namespace {
constexpr size_t kWorstShown = 5;
constexpr double kMegabyte = 1e6;
constexpr double kBillion = 1e9;
// Encoding errors of ordinary weights lie near 0.095; past this something is odd about a tensor.
constexpr double kSuspiciousError = 0.15;
}  // namespace

double QuantizeReport::mean_relative_error() const {
  double sum = 0;
  for (const TensorReport& tensor : tensors) {
    sum += tensor.relative_error;
  }
  return tensors.empty() ? 0.0 : sum / static_cast<double>(tensors.size());
}

int64_t QuantizeReport::num_weights() const {
  int64_t sum = 0;
  for (const TensorReport& tensor : tensors) {
    sum += tensor.n * tensor.k;
  }
  return sum;
}

json::object to_json(const TensorReport& tensor) {
  json::object object{{"module", tensor.module},
                      {"n", tensor.n},
                      {"k", tensor.k},
                      {"recipe", to_string(tensor.method)},
                      {"precision", to_string(tensor.precision)},
                      {"amax", tensor.amax},
                      {"global_scale", tensor.global_scale},
                      {"relative_error", tensor.relative_error},
                      {"max_error", tensor.max_error},
                      {"zero_blocks", tensor.zero_blocks},
                      {"smallest_scale_blocks", tensor.smallest_scale}};
  json::array exponents;
  for (const int64_t count : tensor.scale_exponents) {
    exponents.emplace_back(count);
  }
  object["scale_exponents"] = std::move(exponents);
  const auto add = [&object](const char* key, const auto& value) {
    if (value) {
      object[key] = *value;
    }
  };
  add("relative_objective", tensor.relative_objective);
  add("descent_gain", tensor.descent_gain);
  add("alpha", tensor.alpha);
  add("input_scale", tensor.input_scale);
  if (tensor.calibration_tokens > 0) {
    object["calibration_tokens"] = tensor.calibration_tokens;
  }
  return object;
}

Result<TensorReport> parse_tensor_report(const json::value& value, const std::string& where) {
  const JsonObject object = TRY(JsonObject::from(value, where));
  TensorReport tensor;
  tensor.module = TRY(object.get_string("module"));
  tensor.n = TRY(object.get_int("n"));
  tensor.k = TRY(object.get_int("k"));
  tensor.method = TRY(parse_method(TRY(object.get_string("recipe"))));
  tensor.precision = TRY(parse_precision(TRY(object.get_string("precision"))));
  tensor.amax = static_cast<float>(TRY(object.get_double("amax")));
  tensor.global_scale = static_cast<float>(TRY(object.get_double("global_scale")));
  tensor.relative_error = TRY(object.get_double("relative_error"));
  tensor.max_error = TRY(object.get_double("max_error"));
  tensor.zero_blocks = TRY(object.get_int("zero_blocks"));
  tensor.smallest_scale = TRY(object.get_int("smallest_scale_blocks"));
  const auto exponents = TRY(object.find_int_list("scale_exponents"));
  for (size_t i = 0; exponents && i < std::min(exponents->size(), tensor.scale_exponents.size());
       ++i) {
    tensor.scale_exponents[i] = (*exponents)[i];
  }
  tensor.relative_objective = TRY(object.find_double("relative_objective"));
  tensor.descent_gain = TRY(object.find_double("descent_gain"));
  const auto as_float = [](const std::optional<double>& number) {
    return number ? std::optional<float>(static_cast<float>(*number)) : std::nullopt;
  };
  tensor.alpha = as_float(TRY(object.find_double("alpha")));
  tensor.input_scale = as_float(TRY(object.find_double("input_scale")));
  tensor.calibration_tokens = TRY(object.find_int("calibration_tokens")).value_or(0);
  return tensor;
}

namespace {
json::object to_json(const Spent& spent) {
  return {{"seconds", spent.seconds}, {"cpu_seconds", spent.cpu_seconds}};
}
}  // namespace

json::object to_json(const QuantizeReport& report) {
  json::array tensors;
  for (const TensorReport& tensor : report.tensors) {
    tensors.push_back(to_json(tensor));
  }
  json::array kept;
  for (const auto& [module, reason] : report.kept) {
    kept.push_back(json::object{{"module", module}, {"reason", reason}});
  }
  json::array evaluations;
  for (const Evaluation& one : report.evaluations) {
    evaluations.push_back(json::object{
        {"model", one.model}, {"ppl", one.perplexity}, {"kl", one.kl}, {"top1", one.top1}});
  }
  json::object evaluation{{"text", report.evaluation_text},
                          {"tokens", report.evaluation_tokens},
                          {"models", std::move(evaluations)}};
  return {{"source", report.source},
          {"recipe", to_string(report.method)},
          {"calibration_tokens", report.calibration_tokens},
          {"source_bytes", report.source_bytes},
          {"output_bytes", report.output_bytes},
          {"shards", report.num_shards},
          {"seconds", report.seconds},
          {"calibration", to_json(report.calibration)},
          {"rounding", to_json(report.rounding)},
          {"rounded_weights", report.rounded_weights},
          {"peak_bytes", report.peak_bytes},
          {"mean_relative_error", report.mean_relative_error()},
          {"evaluation",
           report.evaluations.empty() ? json::value(nullptr) : json::value(std::move(evaluation))},
          {"tensors", std::move(tensors)},
          {"kept", std::move(kept)}};
}

std::string summary_text(const QuantizeReport& report) {
  const auto fp8 =
      std::count_if(report.tensors.begin(), report.tensors.end(), [](const TensorReport& tensor) {
        return tensor.precision == Precision::Fp8;
      });
  std::string text = fmt::format(
      "{} linears to NVFP4 ({}){}, {} kept; {:.1f} MB -> {:.1f} MB in {} file{}, {:.1f} s\n",
      static_cast<int64_t>(report.tensors.size()) - fp8,
      to_string(report.method),
      fp8 > 0 ? fmt::format(", {} to FP8", fp8) : std::string(),
      report.kept.size(),
      static_cast<double>(report.source_bytes) / kMegabyte,
      static_cast<double>(report.output_bytes) / kMegabyte,
      report.num_shards,
      report.num_shards == 1 ? "" : "s",
      report.seconds);
  if (report.rounded_weights > 0) {
    const double billions = static_cast<double>(report.rounded_weights) / kBillion;
    text += fmt::format(
        "calibration {:.1f} s, rounding {:.1f} s ({:.0f} s a billion weights); peak memory {:.0f} "
        "MB\n",
        report.calibration.seconds,
        report.rounding.seconds,
        report.rounding.seconds / billions,
        static_cast<double>(report.peak_bytes) / kMegabyte);
  }
  std::vector<const TensorReport*> worst;
  worst.reserve(report.tensors.size());
  for (const TensorReport& tensor : report.tensors) {
    worst.push_back(&tensor);
  }
  std::stable_sort(worst.begin(), worst.end(), [](const TensorReport* a, const TensorReport* b) {
    return a->relative_error > b->relative_error;
  });
  text += fmt::format("relative error: mean {:.4f}; worst:\n", report.mean_relative_error());
  for (size_t i = 0; i < std::min(worst.size(), kWorstShown); ++i) {
    text += fmt::format("  {:.4f}  {}{}\n",
                        worst[i]->relative_error,
                        worst[i]->module,
                        worst[i]->relative_error > kSuspiciousError ? "  (unusually large)" : "");
  }
  for (const Evaluation& one : report.evaluations) {
    text += fmt::format("{:<28} ppl {:8.3f}  kl {:.4f}  same top-1 {:.3f}\n",
                        one.model,
                        one.perplexity,
                        one.kl,
                        one.top1);
  }
  std::map<std::string_view, size_t> fallbacks;
  for (const TensorReport& tensor : report.tensors) {
    if (tensor.method != report.method) {
      ++fallbacks[to_string(tensor.method)];
    }
  }
  for (const auto& [name, count] : fallbacks) {
    text += fmt::format(
        "{} took {} for want of calibration tokens (listed in the report)\n", count, name);
  }
  std::map<std::string, size_t> reasons;
  for (const auto& [module, reason] : report.kept) {
    ++reasons[reason];
  }
  for (const auto& [reason, count] : reasons) {
    text += fmt::format("kept {}: {}\n", count, reason);
  }
  return text;
}

}  // namespace nibble::quantize
