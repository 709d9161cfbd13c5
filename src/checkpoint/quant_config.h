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

namespace nibble::checkpoint {

enum class QuantAlgo : uint8_t { None, Nvfp4, Nvfp4Awq, W4A16Nvfp4, W4A8Nvfp4Fp8, Nvfp4Svd, Fp8 };
std::string_view to_string(QuantAlgo algo);

struct QuantConfig {
  enum class Dialect : uint8_t { None, ModelOpt, CompressedTensors };
  Dialect dialect = Dialect::None;
  QuantAlgo algo = QuantAlgo::None;            // of layers that no override names
  std::map<std::string, QuantAlgo> per_layer;  // MIXED_PRECISION: module name or pattern -> algo
  int64_t group_size = 16;
  std::vector<std::string> exclude;  // wildcards as each dialect means them
  std::string kv_cache_algo;         // "", "FP8", ...
  std::string producer;              // "modelopt 0.47.0"
  std::string source;                // which file and key: for messages
};

// config: config.json; hf_quant_config: hf_quant_config.json or null. Contradictions are errors.
Result<QuantConfig> parse_quant_config(const boost::json::value& config,
                                       const boost::json::value* hf_quant_config);

// What the config claims for a module ("model.layers.0.mlp.down_proj").
QuantAlgo claimed_algo(const QuantConfig& config, std::string_view module);

}  // namespace nibble::checkpoint
