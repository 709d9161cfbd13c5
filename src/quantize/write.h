// The files beside the weights: configs in the ModelOpt layout, the index, the copied tokenizer.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

namespace nibble::quantize {

enum class Layout : uint8_t { ModelOpt, CompressedTensors };
Result<Layout> parse_layout(std::string_view text);  // "modelopt", "compressed-tensors"

// What the configs say about the weights.
struct OutputScheme {
  Layout layout = Layout::ModelOpt;
  bool activations = false;           // input scales are stored: W4A4 is possible
  std::vector<std::string> excluded;  // modules in full precision
  // Modules by what they are stored in, sorted. FP8 ones make it a mixed checkpoint, which names
  // every module.
  std::vector<std::string> nvfp4 = {};
  std::vector<std::string> fp8 = {};

  bool mixed() const { return !fp8.empty(); }
};

// {"producer", "quantization"}: hf_quant_config.json, of ModelOpt's layout alone.
boost::json::object hf_quant_config(const OutputScheme& scheme);

// The source's config.json with the quantization_config of the layout: ModelOpt's flat form, or
// compressed-tensors' groups.
boost::json::object config_with_quantization(const boost::json::object& source_config,
                                             const OutputScheme& scheme);

// model.safetensors, or model-0000i-of-0000n.safetensors.
std::string shard_name(size_t index, size_t count);
boost::json::object shard_index(const std::map<std::string, std::string>& weight_map,
                                uint64_t total_bytes);

// Indented by two spaces, as people expect of config files.
std::string pretty_json(const boost::json::value& value);

// Copies tokenizer, template, generation and licence files; returns their names.
std::vector<std::string> copy_side_files(const std::string& source, const std::string& destination);

}  // namespace nibble::quantize
