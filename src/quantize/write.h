// The files beside the weights: configs in the ModelOpt layout, the index, the copied tokenizer.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

namespace nibble::quantize {

// {"producer", "quantization"}: hf_quant_config.json. excluded: modules in full precision.
boost::json::object hf_quant_config(const std::vector<std::string>& excluded);

// The source's config.json with the flat quantization_config of ModelOpt.
boost::json::object config_with_quantization(const boost::json::object& source_config,
                                             const std::vector<std::string>& excluded);

// model.safetensors, or model-0000i-of-0000n.safetensors.
std::string shard_name(size_t index, size_t count);
boost::json::object shard_index(const std::map<std::string, std::string>& weight_map,
                                uint64_t total_bytes);

// Indented by two spaces, as people expect of config files.
std::string pretty_json(const boost::json::value& value);

// Copies tokenizer, template, generation and licence files; returns their names.
std::vector<std::string> copy_side_files(const std::string& source, const std::string& destination);

}  // namespace nibble::quantize
