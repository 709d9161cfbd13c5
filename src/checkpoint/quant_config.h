// The quantization dialects (ModelOpt nested and flat, hf_quant_config.json, compressed-tensors)
// read into one shape. It says what the checkpoint claims; the stored dtypes and shapes decide.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "base/error.h"
#include "checkpoint/name_pattern.h"

namespace nibble::checkpoint {

enum class QuantAlgo : uint8_t {
  None,
  Nvfp4,
  Nvfp4Awq,
  W4A16Nvfp4,
  W4A8Nvfp4Fp8,
  Nvfp4Svd,
  Fp8,            // one scale a tensor
  Fp8PerChannel,  // one scale a row
  Fp8Block,       // one scale a 128 x 128 block
  Mxfp8,          // one power of two for 32 columns
};
std::string_view to_string(QuantAlgo algo);
// NVFP4 weights, whatever the activations.
bool is_nvfp4(QuantAlgo algo);

struct QuantConfig {
  enum class Dialect : uint8_t { None, ModelOpt, CompressedTensors };
  struct Rule {
    NamePattern pattern;
    QuantAlgo algo = QuantAlgo::None;
    std::string from;  // "quantization_config.config_groups.group_0": for messages
  };
  Dialect dialect = Dialect::None;
  QuantAlgo algo = QuantAlgo::None;            // of layers that nothing below names
  std::map<std::string, QuantAlgo> per_layer;  // module or container name -> algo
  std::vector<Rule> rules;                     // patterns; the first that matches wins
  int64_t group_size = 16;
  std::vector<NamePattern> exclude;
  std::string kv_cache_algo;          // "", "FP8", ...
  std::string producer;               // "modelopt 0.47.0"
  std::string source;                 // which file and key: for messages
  std::vector<std::string> warnings;  // readable, but odd
};

// config: config.json; hf_quant_config: hf_quant_config.json or null. Where both exist and differ,
// config.json wins with a warning; excludes are united (the stored tensors decide in the end).
Result<QuantConfig> parse_quant_config(const boost::json::value& config,
                                       const boost::json::value* hf_quant_config);

// What the config claims for a module ("model.layers.0.mlp.down_proj").
QuantAlgo claimed_algo(const QuantConfig& config, std::string_view module);
bool is_excluded(const QuantConfig& config, std::string_view module);

}  // namespace nibble::checkpoint
