// Quantization configs as texts, and short ways to parse changed ones.
#pragma once

#include <string>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "checkpoint/quant_config.h"

namespace nibble::checkpoint {

inline constexpr const char* kNested =
    R"({"producer":{"name":"modelopt","version":"0.29.0"},"quantization":{"quant_algo":"NVFP4",
        "kv_cache_quant_algo":"FP8","group_size":16,"exclude_modules":["lm_head"]}})";
inline constexpr const char* kFlat =
    R"({"quant_method":"modelopt","quant_algo":"NVFP4","config_groups":{"group_0":{
        "input_activations":{"dynamic":false,"num_bits":4,"type":"float","group_size":16},
        "weights":{"dynamic":false,"num_bits":4,"type":"float","group_size":16},
        "targets":["Linear"]}},"ignore":["lm_head"],
        "kv_cache_scheme":{"dynamic":false,"num_bits":8,"type":"float"}})";
inline const std::string kProj = "model.layers.0.self_attn.q_proj";

inline Result<QuantConfig> parse_side(const std::string& side) {
  const boost::json::value config = boost::json::parse("{}");
  const boost::json::value value = boost::json::parse(side);
  return parse_quant_config(config, &value);
}

inline Result<QuantConfig> parse_main(const std::string& block, const char* side = nullptr) {
  boost::json::object config;
  config["quantization_config"] = boost::json::parse(block);
  const boost::json::value side_value =
      side != nullptr ? boost::json::parse(side) : boost::json::value();
  return parse_quant_config(config, side != nullptr ? &side_value : nullptr);
}

inline std::string error_of(const Result<QuantConfig>& result) {
  return result ? "accepted" : result.error().text();
}

inline std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

}  // namespace nibble::checkpoint
