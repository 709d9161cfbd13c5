#include "quantize/report.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace nibble::quantize {

namespace json = boost::json;

namespace {
constexpr size_t kWorstShown = 5;
constexpr double kMegabyte = 1e6;
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

json::object to_json(const QuantizeReport& report) {
  json::array tensors;
  for (const TensorReport& tensor : report.tensors) {
    tensors.push_back(json::object{{"module", tensor.module},
                                   {"n", tensor.n},
                                   {"k", tensor.k},
                                   {"amax", tensor.amax},
                                   {"global_scale", tensor.global_scale},
                                   {"relative_error", tensor.relative_error},
                                   {"max_error", tensor.max_error},
                                   {"zero_blocks", tensor.zero_blocks},
                                   {"smallest_scale_blocks", tensor.smallest_scale}});
  }
  json::array kept;
  for (const auto& [module, reason] : report.kept) {
    kept.push_back(json::object{{"module", module}, {"reason", reason}});
  }
  return {{"source_bytes", report.source_bytes},
          {"output_bytes", report.output_bytes},
          {"shards", report.num_shards},
          {"seconds", report.seconds},
          {"mean_relative_error", report.mean_relative_error()},
          {"tensors", std::move(tensors)},
          {"kept", std::move(kept)}};
}

std::string summary_text(const QuantizeReport& report) {
  std::string text =
      fmt::format("{} linears to NVFP4, {} kept; {:.1f} MB -> {:.1f} MB in {} file{}, {:.1f} s\n",
                  report.tensors.size(),
                  report.kept.size(),
                  static_cast<double>(report.source_bytes) / kMegabyte,
                  static_cast<double>(report.output_bytes) / kMegabyte,
                  report.num_shards,
                  report.num_shards == 1 ? "" : "s",
                  report.seconds);
  std::vector<const TensorReport*> worst;
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
