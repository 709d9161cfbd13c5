#include <algorithm>
#include <utility>

#include "checkpoint/quant_dialects.h"

namespace nibble::checkpoint {

namespace {

constexpr std::string_view kMixed = "MIXED_PRECISION";

Result<int64_t> checked_group_size(int64_t size, const std::string& where) {
  if (size != 16 && size != 32) {
    return unsupported("group size " + std::to_string(size) + " is not supported; 16 and 32 are",
                       where);
  }
  return size;
}

// What one config group says: the algorithm of its weights and whether activations are quantized.
struct GroupFacts {
  QuantAlgo algo = QuantAlgo::None;
  bool quantizes_activations = false;
  std::optional<int64_t> group_size;
  std::vector<std::string> targets;
};

Result<GroupFacts> read_group(const JsonObject& group) {
  GroupFacts facts;
  const JsonObject weights = TRY(group.get_object("weights"));
  facts.quantizes_activations = group.has("input_activations");
  facts.group_size = TRY(weights.find_int("group_size"));
  const int64_t bits = TRY(weights.find_int("num_bits")).value_or(4);
  if (bits == 4) {
    facts.algo = facts.quantizes_activations ? QuantAlgo::Nvfp4 : QuantAlgo::W4A16Nvfp4;
    if (facts.group_size) {
      TRY(checked_group_size(*facts.group_size, weights.path_of("group_size")));
    }
  } else if (bits == 8) {
    const std::string strategy = TRY(weights.find_string("strategy")).value_or("tensor");
    facts.algo = strategy == "channel"    ? QuantAlgo::Fp8PerChannel
                 : facts.group_size == 32 ? QuantAlgo::Mxfp8
                                          : QuantAlgo::Fp8;
  } else {
    return unsupported(std::to_string(bits) + "-bit weights are not supported",
                       weights.path_of("num_bits"));
  }
  facts.targets = TRY(group.find_string_list("targets")).value_or(std::vector<std::string>{});
  return facts;
}

Result<std::vector<GroupFacts>> read_groups(const JsonObject& block) {
  std::vector<GroupFacts> result;
  const auto groups = TRY(block.find_object("config_groups"));
  if (groups) {
    for (const auto& member : groups->raw()) {
      result.push_back(TRY(read_group(TRY(groups->get_object(member.key())))));
    }
  }
  return result;
}

Result<void> read_quantized_layers(const JsonObject& block,
                                   const std::vector<GroupFacts>& groups,
                                   QuantConfig& config) {
  const auto layers = TRY(block.find_object("quantized_layers"));
  if (layers) {
    for (const auto& member : layers->raw()) {
      const JsonObject layer = TRY(layers->get_object(member.key()));
      const QuantAlgo algo =
          TRY(parse_quant_algo(TRY(layer.get_string("quant_algo")), layer.path_of("quant_algo")));
      if (is_nvfp4(algo)) {
        if (const auto size = TRY(layer.find_int("group_size"))) {
          TRY(checked_group_size(*size, layer.path_of("group_size")));
        }
      }
      config.per_layer.emplace(without_wrapper(member.key()), algo);
    }
    return {};
  }
  for (const GroupFacts& group : groups) {
    for (const std::string& target : group.targets) {
      if (target != "Linear") {
        config.per_layer.emplace(without_wrapper(target), group.algo);
      } else {
        config.algo = group.algo;
      }
    }
  }
  if (config.per_layer.empty() && config.algo == QuantAlgo::None) {
    return invalid("missing, and config_groups names no layers; MIXED_PRECISION needs one of them",
                   block.path_of("quantized_layers"));
  }
  return {};
}

std::string producer_text(const JsonObject& block) {
  const auto* producer = block.find("producer");
  if (producer == nullptr || !producer->is_object()) {
    return {};
  }
  std::string text;
  for (std::string_view key : {"name", "version"}) {
    const auto* part = producer->get_object().if_contains(key);
    if (part != nullptr && part->is_string()) {
      text += (text.empty() ? "" : " ") + std::string(part->get_string());
    }
  }
  return text;
}

}  // namespace

Result<void> read_excludes(const JsonObject& block, QuantConfig& config) {
  for (std::string_view key : {"exclude_modules", "ignore", "modules_to_not_convert", "exclude"}) {
    const auto names = TRY(block.find_string_list(key));
    if (!names) {
      continue;
    }
    for (const std::string& name : *names) {
      auto pattern = NamePattern::compile(name);
      if (!pattern) {
        return invalid(pattern.error().message, block.path_of(key));
      }
      config.exclude.push_back(std::move(*pattern));
    }
  }
  return {};
}

Result<void> read_kv_cache(const JsonObject& block, QuantConfig& config) {
  if (const auto algo = TRY(block.find_string("kv_cache_quant_algo"))) {
    config.kv_cache_algo = *algo;
    return {};
  }
  const auto* scheme = block.find("kv_cache_scheme");
  if (scheme == nullptr) {
    return {};
  }
  if (scheme->is_string()) {
    config.kv_cache_algo = std::string(scheme->get_string());
    return {};
  }
  const auto object = TRY(block.get_object("kv_cache_scheme"));
  const int64_t bits = TRY(object.find_int("num_bits")).value_or(8);
  const std::string type = TRY(object.find_string("type")).value_or("float");
  config.kv_cache_algo = (type == "float" ? "FP" : "INT") + std::to_string(bits);
  return {};
}

Result<QuantConfig> parse_modelopt(const JsonObject& outer, bool says_method) {
  const auto nested = TRY(outer.find_object("quantization"));
  const JsonObject& block = nested.has_value() ? *nested : outer;

  QuantConfig config;
  config.dialect = QuantConfig::Dialect::ModelOpt;
  config.source = block.path();
  config.producer = producer_text(outer);
  TRY(read_excludes(block, config));
  TRY(read_kv_cache(block, config));
  const std::vector<GroupFacts> groups = TRY(read_groups(block));
  const auto algo_name = TRY(block.find_string("quant_algo"));
  if (!algo_name && groups.empty()) {
    if (!config.kv_cache_algo.empty() || block.raw().contains("quant_algo")) {
      return config;  // only the KV cache is quantized
    }
    return invalid("missing; expected the name of an algorithm such as NVFP4 (quant_method is " +
                       std::string(says_method ? "modelopt" : "missing too") + ")",
                   block.path_of("quant_algo"));
  }
  if (!says_method) {
    config.warnings.push_back(block.path_of("quant_method") +
                              ": missing; read as modelopt because quant_algo is there");
  }

  const auto group_size = TRY(block.find_int("group_size"));
  if (algo_name && *algo_name == kMixed) {
    TRY(read_quantized_layers(block, groups, config));
    return config;
  }
  config.algo = algo_name ? TRY(parse_quant_algo(*algo_name, block.path_of("quant_algo")))
                          : groups.front().algo;
  if (!is_nvfp4(config.algo)) {
    return config;
  }
  for (const GroupFacts& group : groups) {
    if (!is_nvfp4(group.algo)) {
      return invalid(
          "says 8 bits for weights, but quant_algo says " + std::string(to_string(config.algo)),
          block.path_of("config_groups"));
    }
  }
  if (group_size) {
    config.group_size = TRY(checked_group_size(*group_size, block.path_of("group_size")));
  } else if (!groups.empty()) {
    config.group_size = groups.front().group_size.value_or(config.group_size);
  }
  // Three spellings of "weight only": the algorithm's name, no activation entry, a flag.
  const bool no_group_quantizes_activations =
      !groups.empty() && std::none_of(groups.begin(), groups.end(), [](const GroupFacts& group) {
        return group.quantizes_activations;
      });
  const bool says_no_input_scale = !TRY(block.find_bool("with_input_scale")).value_or(true);
  if (config.algo == QuantAlgo::Nvfp4 && (no_group_quantizes_activations || says_no_input_scale)) {
    config.algo = QuantAlgo::W4A16Nvfp4;
  }
  return config;
}

Result<QuantConfig> parse_fp8_method(const JsonObject& block) {
  QuantConfig config;
  config.dialect = QuantConfig::Dialect::ModelOpt;
  config.source = block.path();
  config.algo = block.has("weight_block_size") ? QuantAlgo::Fp8Block : QuantAlgo::Fp8;
  TRY(read_excludes(block, config));
  if (block.has("quantized_layers")) {
    TRY(read_quantized_layers(block, {}, config));
  }
  return config;
}

}  // namespace nibble::checkpoint
