#include <utility>

#include "checkpoint/quant_dialects.h"

namespace nibble::checkpoint {

namespace {

constexpr std::string_view kNvfp4Format = "nvfp4-pack-quantized";

Result<QuantAlgo> group_algo(const JsonObject& group, const std::string& outer_format) {
  const std::string format = TRY(group.find_string("format")).value_or(outer_format);
  const JsonObject weights = TRY(group.get_object("weights"));
  const int64_t bits = TRY(weights.find_int("num_bits")).value_or(0);
  const std::string type = TRY(weights.find_string("type")).value_or("int");
  const std::string strategy = TRY(weights.find_string("strategy")).value_or("");
  if (!TRY(weights.find_bool("symmetric")).value_or(true)) {
    return unsupported("is false; weights with zero points are not supported",
                       weights.path_of("symmetric"));
  }
  if (format == kNvfp4Format) {
    const auto group_size = TRY(weights.find_int("group_size"));
    if (bits != 4 || type != "float" || (group_size && *group_size != 16)) {
      return unsupported("expected 4-bit float weights in groups of 16, found " +
                             std::to_string(bits) + "-bit " + type.substr(0, 32) +
                             " in groups of " + std::to_string(group_size.value_or(0)),
                         weights.path());
    }
    return group.has("input_activations") ? QuantAlgo::Nvfp4 : QuantAlgo::W4A16Nvfp4;
  }
  if (format == "float-quantized" || format == "naive-quantized") {
    if (bits == 8 && type == "float") {
      if (strategy == "channel") {
        return QuantAlgo::Fp8PerChannel;
      }
      if (strategy == "block") {
        return QuantAlgo::Fp8Block;
      }
      return QuantAlgo::Fp8;
    }
  }
  return unsupported("compressed-tensors format '" + format.substr(0, 64) + "' with " +
                         std::to_string(bits) + "-bit " + type.substr(0, 32) +
                         " weights is not supported; nvfp4-pack-quantized and 8-bit "
                         "float-quantized are",
                     group.path());
}

// Hadamard rotations and sparsity change what the stored numbers mean.
Result<void> refuse_transforms(const JsonObject& block) {
  for (std::string_view key : {"transform_config", "sparsity_config"}) {
    const auto object = TRY(block.find_object(key));
    if (!object || object->raw().empty()) {
      continue;
    }
    if (key == "sparsity_config" && TRY(object->find_string("format")).value_or("") == "dense") {
      continue;
    }
    return unsupported("is not empty; transformed or sparse weights are not supported",
                       block.path_of(key));
  }
  return {};
}

}  // namespace

Result<QuantConfig> parse_compressed_tensors(const JsonObject& block) {
  QuantConfig config;
  config.dialect = QuantConfig::Dialect::CompressedTensors;
  config.source = block.path();
  config.producer =
      "compressed-tensors " + TRY(block.find_string("version")).value_or("(no version)");
  TRY(refuse_transforms(block));
  TRY(read_excludes(block, config));
  TRY(read_kv_cache(block, config));
  const std::string format = TRY(block.find_string("format")).value_or(std::string(kNvfp4Format));
  const JsonObject groups = TRY(block.get_object("config_groups"));
  for (const auto& member : groups.raw()) {
    const JsonObject group = TRY(groups.get_object(member.key()));
    if (!group.has("weights")) {
      continue;  // an entry for activations or the KV cache only
    }
    const QuantAlgo algo = TRY(group_algo(group, format));
    const auto targets = TRY(group.find_string_list("targets"));
    for (const std::string& target : targets.value_or(std::vector<std::string>{"Linear"})) {
      auto pattern = NamePattern::compile(target);
      if (!pattern) {
        return invalid(pattern.error().message, group.path_of("targets"));
      }
      // An exact name goes before expressions; among expressions the first group wins.
      const bool exact = !target.starts_with("re:") && target != "Linear";
      if (exact && target.find('*') == std::string::npos) {
        config.per_layer.emplace(without_wrapper(target), algo);
      } else {
        config.rules.push_back({std::move(*pattern), algo, group.path()});
      }
    }
  }
  if (config.rules.empty() && config.per_layer.empty()) {
    return invalid("names no quantized layers", groups.path());
  }
  return config;
}

}  // namespace nibble::checkpoint
