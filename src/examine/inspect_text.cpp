// How an inspection is shown: tables for the terminal and JSON.
#include <algorithm>
#include <array>
#include <span>
#include <string>

#include <fmt/format.h>

#include "checkpoint/kv_cache.h"
#include "examine/inspect.h"

namespace nibble::examine {

namespace json = boost::json;
using checkpoint::LinearInfo;
using checkpoint::Problem;
using checkpoint::QuantConfig;

namespace {

constexpr size_t kMaxProblemsShown = 40;
constexpr double kBitsPerByte = 8.0;

std::string_view dialect_name(QuantConfig::Dialect dialect) {
  switch (dialect) {
    case QuantConfig::Dialect::None:
      return "none";
    case QuantConfig::Dialect::ModelOpt:
      return "modelopt";
    case QuantConfig::Dialect::CompressedTensors:
      return "compressed-tensors";
  }
  return "none";
}

std::string stored_name(const LinearInfo& info) {
  switch (info.stored) {
    case LinearInfo::Stored::AsFormat:
      break;
    case LinearInfo::Stored::Fp8PerChannel:
      return "fp8 per channel";
    case LinearInfo::Stored::Fp8Block:
      return "fp8 blocks";
    case LinearInfo::Stored::Mxfp8:
      return "mxfp8";
  }
  std::string name(to_string(info.format));
  if (info.format == LinearInfo::Format::Nvfp4 && info.group_size != 16) {
    name += "/" + std::to_string(info.group_size);
  }
  return name + (info.pre_quant_scale.empty() ? "" : "+awq");
}

std::string size_text(uint64_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"B", "KB", "MB", "GB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1000.0 && unit + 1 < kUnits.size()) {
    value /= 1000.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

double bits_per_weight(const Inspection& inspection) {
  return inspection.linear_weights == 0
             ? 0.0
             : static_cast<double>(inspection.linear_bytes) * kBitsPerByte /
                   static_cast<double>(inspection.linear_weights);
}

std::string scale_range(const LinearPattern& row) {
  if (row.example.info.format == LinearInfo::Format::Bf16) {
    return "-";
  }
  return row.min_global_scale == row.max_global_scale
             ? fmt::format("{:.3g}", row.min_global_scale)
             : fmt::format("{:.3g}..{:.3g}", row.min_global_scale, row.max_global_scale);
}

std::string block_range(const ScaleStatistics& scales) {
  if (scales.blocks == 0) {
    return "-";
  }
  std::string text = fmt::format("{:.3g}..{:.3g}", scales.min, scales.max);
  const auto percent = [&](int64_t count) {
    return 100.0 * static_cast<double>(count) / static_cast<double>(scales.blocks);
  };
  if (scales.zero + scales.smallest > 0) {
    text += fmt::format(", {:.2f}% at the bottom", percent(scales.zero + scales.smallest));
  }
  if (scales.nan + scales.negative > 0) {
    text += fmt::format(", {} NaN or negative", scales.nan + scales.negative);
  }
  return text;
}

// Columns padded to their widest cell; the last one is not padded.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += i + 1 == row.size() ? row[i] : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    text += "\n";
  }
  return text;
}

std::string linear_table(const Inspection& inspection) {
  std::vector<std::vector<std::string>> rows = {{"linear",
                                                 "count",
                                                 "stored",
                                                 "n x k",
                                                 "size",
                                                 "global scale",
                                                 "mode",
                                                 "kernel",
                                                 "block scales"}};
  for (const LinearPattern& row : inspection.patterns) {
    const LinearInfo& info = row.example.info;
    std::string sizes = fmt::format("{} x {}", info.n, info.k);
    rows.push_back({row.pattern,
                    std::to_string(row.count),
                    stored_name(info) + (row.uniform ? "" : " (not all)"),
                    std::move(sizes),
                    size_text(row.size_bytes),
                    scale_range(row),
                    row.example.mode,
                    row.example.kernel,
                    block_range(row.scales)});
  }
  return table(rows);
}

json::object scales_json(const ScaleStatistics& scales) {
  return {{"blocks", scales.blocks},
          {"zero", scales.zero},
          {"smallest", scales.smallest},
          {"largest", scales.largest},
          {"nan", scales.nan},
          {"negative", scales.negative},
          {"min", scales.min},
          {"max", scales.max}};
}

json::object linear_json(const InspectedLinear& linear) {
  const LinearInfo& info = linear.info;
  json::object object{{"module", info.module},
                      {"stored", stored_name(info)},
                      {"claimed", to_string(info.claim)},
                      {"n", info.n},
                      {"k", info.k},
                      {"bytes", info.size_bytes},
                      {"mode", linear.mode},
                      {"kernel", linear.kernel}};
  if (info.format == LinearInfo::Format::Nvfp4) {
    object["group_size"] = info.group_size;
  }
  if (info.format != LinearInfo::Format::Bf16) {
    object["global_scale"] = info.global_scale;
    object["has_input_scale"] = !info.input_scale.empty();
  }
  if (linear.scales.blocks > 0) {
    object["block_scales"] = scales_json(linear.scales);
  }
  return object;
}

std::string_view severity_name(Problem::Severity severity) {
  return severity == Problem::Severity::Error ? "error" : "warning";
}

std::string problems_text(const Inspection& inspection) {
  std::string text;
  const size_t shown = std::min(inspection.problems.size(), kMaxProblemsShown);
  for (const Problem& problem : std::span(inspection.problems).first(shown)) {
    text += fmt::format("{}: {}\n", severity_name(problem.severity), problem.error.text());
  }
  if (shown < inspection.problems.size()) {
    text += fmt::format("and {} more; --json lists all\n", inspection.problems.size() - shown);
  }
  return text;
}

}  // namespace

json::object to_json(const Inspection& inspection) {
  json::array linears;
  for (const InspectedLinear& linear : inspection.linears) {
    linears.push_back(linear_json(linear));
  }
  json::array problems;
  for (const Problem& problem : inspection.problems) {
    problems.push_back(json::object{{"severity", severity_name(problem.severity)},
                                    {"where", problem.error.where},
                                    {"message", problem.error.message}});
  }
  json::array excluded;
  for (const checkpoint::NamePattern& pattern : inspection.quant.exclude) {
    excluded.emplace_back(pattern.text());
  }
  return {{"directory", inspection.directory},
          {"servable", inspection.servable()},
          {"architecture", inspection.config.architecture},
          {"quantization",
           json::object{{"dialect", dialect_name(inspection.quant.dialect)},
                        {"algorithm", to_string(inspection.quant.algo)},
                        {"producer", inspection.quant.producer},
                        {"source", inspection.quant.source},
                        {"kv_cache", inspection.quant.kv_cache_algo},
                        {"excluded", std::move(excluded)}}},
          {"tensors", inspection.num_tensors},
          {"bytes", inspection.total_bytes},
          {"linear_bytes", inspection.linear_bytes},
          {"linear_weights", inspection.linear_weights},
          {"bits_per_linear_weight", bits_per_weight(inspection)},
          {"linears", std::move(linears)},
          {"problems", std::move(problems)}};
}

std::string to_text(const Inspection& inspection) {
  const QuantConfig& quant = inspection.quant;
  std::string text = fmt::format("{}: {}\n", inspection.directory, inspection.config.architecture);
  if (quant.dialect == QuantConfig::Dialect::None) {
    text += "quantization: none claimed\n";
  } else {
    text += fmt::format("quantization: {}, {}{}{}\n",
                        dialect_name(quant.dialect),
                        quant.per_layer.empty() && quant.rules.empty()
                            ? std::string(to_string(quant.algo))
                            : "by layer",
                        quant.producer.empty() ? "" : ", by " + quant.producer,
                        quant.kv_cache_algo.empty() ? ""
                        : checkpoint::asks_for_fp8_kv_cache(quant)
                            ? ", KV cache " + quant.kv_cache_algo
                            : ", KV cache " + quant.kv_cache_algo + " (bfloat16 is used)");
  }
  text += fmt::format("{} tensors, {}; {} linears, {}, {:.2f} bits a weight\n\n",
                      inspection.num_tensors,
                      size_text(inspection.total_bytes),
                      inspection.linears.size(),
                      size_text(inspection.linear_bytes),
                      bits_per_weight(inspection));
  text += linear_table(inspection) + "\n" + problems_text(inspection);
  return text + (inspection.servable() ? "servable\n" : "not servable\n");
}

}  // namespace nibble::examine
