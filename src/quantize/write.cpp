#include "quantize/write.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "base/json.h"
#include "base/version.h"

namespace nibble::quantize {

namespace json = boost::json;

namespace {

// Without activation statistics no input scales are stored: weight only.
std::string_view algorithm_of(const OutputScheme& scheme) {
  return scheme.activations ? "NVFP4" : "W4A16_NVFP4";
}

// "quantized_layers" of MIXED_PRECISION.
json::object layer_algorithms(const OutputScheme& scheme) {
  json::object layers;
  for (const std::string& module : scheme.nvfp4) {
    layers[module] = json::object{{"quant_algo", algorithm_of(scheme)}, {"group_size", 16}};
  }
  for (const std::string& module : scheme.fp8) {
    layers[module] = json::object{{"quant_algo", "FP8"}};
  }
  return layers;
}

json::array name_array(const std::vector<std::string>& names) {
  json::array array;
  for (const std::string& name : names) {
    array.emplace_back(name);
  }
  return array;
}

json::object producer() { return {{"name", "nibble"}, {"version", kVersion}}; }

json::object compressed_tensors_config(const OutputScheme& scheme) {
  const auto fp4 = [](const json::value& dynamic) {
    return json::object{{"num_bits", 4},
                        {"type", "float"},
                        {"strategy", "tensor_group"},
                        {"group_size", 16},
                        {"symmetric", true},
                        {"dynamic", dynamic},
                        {"scale_dtype", "torch.float8_e4m3fn"}};
  };
  json::object group{{"targets", json::array{"Linear"}},
                     {"format", "nvfp4-pack-quantized"},
                     {"weights", fp4(false)},
                     {"input_activations", nullptr},
                     {"output_activations", nullptr}};
  if (scheme.activations) {
    group["input_activations"] = fp4("local");
  }
  json::object groups;
  if (scheme.mixed()) {
    const json::object fp8{{"num_bits", 8},
                           {"type", "float"},
                           {"strategy", "tensor"},
                           {"symmetric", true},
                           {"dynamic", false}};
    json::object eight{{"targets", name_array(scheme.fp8)},
                       {"format", "float-quantized"},
                       {"weights", fp8},
                       {"input_activations", nullptr},
                       {"output_activations", nullptr}};
    if (scheme.activations) {
      eight["input_activations"] = fp8;
    }
    groups["group_0"] = std::move(eight);
    if (!scheme.nvfp4.empty()) {
      group["targets"] = name_array(scheme.nvfp4);
      groups["group_1"] = std::move(group);
    }
  } else {
    groups["group_0"] = std::move(group);
  }
  return {{"quant_method", "compressed-tensors"},
          {"format", scheme.mixed() ? "mixed-precision" : "nvfp4-pack-quantized"},
          {"quantization_status", "compressed"},
          {"global_compression_ratio", nullptr},
          {"kv_cache_scheme", nullptr},
          {"config_groups", std::move(groups)},
          {"ignore", name_array(scheme.excluded)}};
}

void print(const json::value& value, int depth, std::string& out) {
  const auto line = [&](int level) {
    out += "\n" + std::string(static_cast<size_t>(level) * 2, ' ');
  };
  const bool empty_object = value.is_object() && value.get_object().empty();
  const bool empty_array = value.is_array() && value.get_array().empty();
  if (value.is_object() && !empty_object) {
    out += '{';
    bool first = true;
    for (const auto& member : value.get_object()) {
      out += first ? "" : ",";
      first = false;
      line(depth + 1);
      out += json::serialize(json::string(member.key())) + ": ";
      print(member.value(), depth + 1, out);
    }
    line(depth);
    out += '}';
  } else if (value.is_array() && !empty_array) {
    out += '[';
    bool first = true;
    for (const json::value& element : value.get_array()) {
      out += first ? "" : ",";
      first = false;
      line(depth + 1);
      print(element, depth + 1, out);
    }
    line(depth);
    out += ']';
  } else if (value.is_double()) {
    std::string text = format_number(value.get_double());
    // Readers that tell integers from floats must see a float again.
    out += text.find_first_of(".eIN") == std::string::npos ? text + ".0" : text;
  } else {
    out += json::serialize(value);
  }
}

bool is_side_file(const std::string& name) {
  constexpr std::array<std::string_view, 6> kNever = {"config.json",
                                                      "hf_quant_config.json",
                                                      "quantize_report.json",
                                                      "weights_manifest.json",
                                                      "golden.json",
                                                      ".gitattributes"};
  if (std::find(kNever.begin(), kNever.end(), name) != kNever.end() ||
      name.ends_with(".index.json") || name.starts_with('.')) {
    return false;
  }
  constexpr std::array<std::string_view, 6> kEndings = {
      ".json", ".jinja", ".txt", ".model", ".tiktoken", ".py"};
  return name.starts_with("LICENSE") || name.starts_with("NOTICE") ||
         std::any_of(kEndings.begin(), kEndings.end(), [&](std::string_view ending) {
           return name.ends_with(ending);
         });
}

}  // namespace

Result<Layout> parse_layout(std::string_view text) {
  if (text == "modelopt") {
    return Layout::ModelOpt;
  }
  if (text == "compressed-tensors") {
    return Layout::CompressedTensors;
  }
  return invalid("expected modelopt or compressed-tensors, found " + std::string(text), "layout");
}

json::object hf_quant_config(const OutputScheme& scheme) {
  json::object quantization{
      {"quant_algo", scheme.mixed() ? std::string_view("MIXED_PRECISION") : algorithm_of(scheme)},
      {"kv_cache_quant_algo", nullptr},
      {"group_size", 16},
      {"exclude_modules", name_array(scheme.excluded)}};
  if (scheme.mixed()) {
    quantization["quantized_layers"] = layer_algorithms(scheme);
  }
  return {{"producer", producer()}, {"quantization", std::move(quantization)}};
}

json::object config_with_quantization(const json::object& source_config,
                                      const OutputScheme& scheme) {
  json::object config = source_config;
  if (scheme.layout == Layout::CompressedTensors) {
    config["quantization_config"] = compressed_tensors_config(scheme);
    return config;
  }
  const auto group_of = [&](const json::object& numbers, json::array targets) {
    json::object group{{"weights", numbers}, {"targets", std::move(targets)}};
    if (scheme.activations) {
      group["input_activations"] = numbers;
    }
    return group;
  };
  const json::object fp4{
      {"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
  const json::object fp8{{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
  json::object groups;
  if (scheme.mixed()) {
    groups["group_0"] = group_of(fp8, name_array(scheme.fp8));
    if (!scheme.nvfp4.empty()) {
      groups["group_1"] = group_of(fp4, name_array(scheme.nvfp4));
    }
  } else {
    groups["group_0"] = group_of(fp4, json::array{"Linear"});
  }
  json::object block{
      {"config_groups", std::move(groups)},
      {"ignore", name_array(scheme.excluded)},
      {"quant_algo", scheme.mixed() ? std::string_view("MIXED_PRECISION") : algorithm_of(scheme)},
      {"producer", producer()},
      {"quant_method", "modelopt"}};
  if (scheme.mixed()) {
    block["quantized_layers"] = layer_algorithms(scheme);
  }
  config["quantization_config"] = std::move(block);
  return config;
}

std::string shard_name(size_t index, size_t count) {
  return count == 1 ? "model.safetensors"
                    : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

json::object shard_index(const std::map<std::string, std::string>& weight_map,
                         uint64_t total_bytes) {
  json::object map;
  for (const auto& [tensor, file] : weight_map) {
    map[tensor] = file;
  }
  return {{"metadata", json::object{{"total_size", total_bytes}}}, {"weight_map", std::move(map)}};
}

std::string pretty_json(const json::value& value) {
  std::string text;
  print(value, 0, text);
  return text + "\n";
}

std::vector<std::string> copy_side_files(const std::string& source,
                                         const std::string& destination) {
  std::vector<std::string> copied;
  for (const auto& entry : std::filesystem::directory_iterator(source)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && is_side_file(name)) {
      std::filesystem::copy_file(entry.path(),
                                 std::filesystem::path(destination) / name,
                                 std::filesystem::copy_options::overwrite_existing);
      copied.push_back(name);
    }
  }
  std::sort(copied.begin(), copied.end());
  return copied;
}

}  // namespace nibble::quantize
