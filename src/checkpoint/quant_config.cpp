#include "checkpoint/quant_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <utility>

#include "base/json.h"
#include "checkpoint/quant_dialects.h"

namespace nibble::checkpoint {

namespace json = boost::json;

namespace {

struct AlgoName {
  std::string_view name;
  QuantAlgo algo;
};
constexpr std::array<AlgoName, 10> kAlgoNames = {{
    {"none", QuantAlgo::None},
    {"NVFP4", QuantAlgo::Nvfp4},
    {"NVFP4_AWQ", QuantAlgo::Nvfp4Awq},
    {"W4A16_NVFP4", QuantAlgo::W4A16Nvfp4},
    {"W4A8_NVFP4_FP8", QuantAlgo::W4A8Nvfp4Fp8},
    {"NVFP4_SVD", QuantAlgo::Nvfp4Svd},
    {"FP8", QuantAlgo::Fp8},
    {"FP8_PER_CHANNEL_PER_TOKEN", QuantAlgo::Fp8PerChannel},
    {"FP8_PB_WO", QuantAlgo::Fp8Block},
    {"MXFP8", QuantAlgo::Mxfp8},
}};

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(std::toupper(c));
  });
  return text;
}

struct Located {
  JsonObject object;
  bool in_side_file;
};

// The first place that has a quantization block: config.json, its text_config, the side file.
Result<std::vector<Located>> quantization_blocks(const json::value& config,
                                                 const json::value* hf_quant_config) {
  std::vector<Located> found;
  const JsonObject root = TRY(JsonObject::from(config, "config.json"));
  auto block = TRY(root.find_object("quantization_config"));
  if (!block) {
    if (const auto text = TRY(root.find_object("text_config"))) {
      block = TRY(text->find_object("quantization_config"));
    }
  }
  if (block) {
    found.push_back({*block, false});
  }
  if (hf_quant_config != nullptr) {
    const JsonObject side = TRY(JsonObject::from(*hf_quant_config, "hf_quant_config.json"));
    found.push_back({side, true});
  }
  return found;
}

std::vector<std::string> exclude_texts(const QuantConfig& config) {
  std::vector<std::string> texts;
  texts.reserve(config.exclude.size());
  for (const NamePattern& pattern : config.exclude) {
    texts.push_back(pattern.text());
  }
  std::sort(texts.begin(), texts.end());
  return texts;
}

// config.json wins; what the side file adds is kept, what it contradicts is said once.
void merge_side_file(QuantConfig& config, QuantConfig side) {
  for (std::string& warning : side.warnings) {
    config.warnings.push_back(std::move(warning));
  }
  if (side.algo != config.algo || (side.per_layer.empty() != config.per_layer.empty())) {
    config.warnings.push_back(config.source + " says " + std::string(to_string(config.algo)) +
                              ", " + side.source + " says " + std::string(to_string(side.algo)) +
                              "; the stored tensors decide");
  }
  if (config.per_layer.empty() && config.rules.empty()) {
    config.per_layer = std::move(side.per_layer);
    config.rules = std::move(side.rules);
  }
  const auto own = exclude_texts(config);
  const auto other = exclude_texts(side);
  if (own != other) {
    std::vector<std::string> difference;
    std::set_symmetric_difference(
        own.begin(), own.end(), other.begin(), other.end(), std::back_inserter(difference));
    config.warnings.push_back(side.source + " and " + config.source +
                              " list different excluded modules; the first that only one has is '" +
                              (difference.empty() ? std::string() : difference.front()) + "'");
    for (NamePattern& pattern : side.exclude) {
      config.exclude.push_back(std::move(pattern));
    }
  }
  if (config.kv_cache_algo.empty()) {
    config.kv_cache_algo = side.kv_cache_algo;
  }
}

Result<QuantConfig> parse_block(const Located& located) {
  const JsonObject& block = located.object;
  const std::string method = TRY(block.find_string("quant_method")).value_or("");
  if (method == "compressed-tensors") {
    return parse_compressed_tensors(block);
  }
  if (method == "fp8") {
    return parse_fp8_method(block);
  }
  if (method.empty() || method == "modelopt" || method == "modelopt_fp4" ||
      method == "modelopt_mixed" || method == "nvfp4") {
    return parse_modelopt(block, /*says_method=*/!method.empty() || located.in_side_file);
  }
  return unsupported("quantization method '" + method.substr(0, 64) +
                         "' is not supported; modelopt, compressed-tensors and fp8 are",
                     block.path_of("quant_method"));
}

}  // namespace

std::string_view to_string(QuantAlgo algo) {
  for (const AlgoName& entry : kAlgoNames) {
    if (entry.algo == algo) {
      return entry.name;
    }
  }
  return "unknown";
}

bool is_nvfp4(QuantAlgo algo) {
  return algo == QuantAlgo::Nvfp4 || algo == QuantAlgo::Nvfp4Awq || algo == QuantAlgo::W4A16Nvfp4 ||
         algo == QuantAlgo::W4A8Nvfp4Fp8 || algo == QuantAlgo::Nvfp4Svd;
}

Result<QuantAlgo> parse_quant_algo(std::string_view text, const std::string& where) {
  const std::string name = upper(std::string(text.substr(0, 64)));
  if (name == "NVFP4_SVD") {
    return unsupported(
        "NVFP4_SVD (a low-rank branch beside the 4-bit weights) is not supported; export the model "
        "with NVFP4 or NVFP4_AWQ",
        where);
  }
  for (const AlgoName& entry : kAlgoNames) {
    if (entry.algo != QuantAlgo::None && entry.name == name) {
      return entry.algo;
    }
  }
  return unsupported("quantization algorithm '" + std::string(text.substr(0, 64)) +
                         "' is not supported; NVFP4, W4A16_NVFP4, NVFP4_AWQ, W4A8_NVFP4_FP8, FP8, "
                         "FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, MXFP8 and MIXED_PRECISION are",
                     where);
}

Result<QuantConfig> parse_quant_config(const json::value& config,
                                       const json::value* hf_quant_config) {
  const std::vector<Located> blocks = TRY(quantization_blocks(config, hf_quant_config));
  if (blocks.empty()) {
    return QuantConfig{};
  }
  QuantConfig result = TRY(parse_block(blocks.front()));
  if (blocks.size() > 1) {
    merge_side_file(result, TRY(parse_block(blocks.back())));
  }
  return result;
}

bool is_excluded(const QuantConfig& config, std::string_view module) {
  return std::any_of(config.exclude.begin(), config.exclude.end(), [&](const NamePattern& pattern) {
    return pattern.matches(module);
  });
}

QuantAlgo claimed_algo(const QuantConfig& config, std::string_view module) {
  if (is_excluded(config, module)) {
    return QuantAlgo::None;
  }
  if (!config.per_layer.empty()) {
    // The module's own name, then each container around it ("model.layers.0.mlp.experts").
    for (std::string name = without_wrapper(module); !name.empty();) {
      if (const auto found = config.per_layer.find(name); found != config.per_layer.end()) {
        return found->second;
      }
      const size_t dot = name.rfind('.');
      name.resize(dot == std::string::npos ? 0 : dot);
    }
  }
  for (const QuantConfig::Rule& rule : config.rules) {
    if (rule.pattern.text() == "Linear" || rule.pattern.matches(module)) {
      return rule.algo;
    }
  }
  return config.algo;
}

}  // namespace nibble::checkpoint
