// One parser a dialect of quantization config; quant_config.cpp picks among them.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/quant_config.h"

namespace nibble::checkpoint {

// "NVFP4", "fp8_pb_wo", ...; an unknown name is an error that lists the known ones.
Result<QuantAlgo> parse_quant_algo(std::string_view text, const std::string& where);

// NVIDIA ModelOpt: hf_quant_config.json (nested under "quantization") and the flat block of
// config.json. says_method: quant_method was there or is not needed.
Result<QuantConfig> parse_modelopt(const JsonObject& block, bool says_method);

// compressed-tensors (llm-compressor).
Result<QuantConfig> parse_compressed_tensors(const JsonObject& block);

// quant_method "fp8": block-scaled FP8 as DeepSeek and Qwen publish it, possibly with NVFP4
// experts.
Result<QuantConfig> parse_fp8_method(const JsonObject& block);

// The list of modules kept in full precision, under any of its four names.
Result<void> read_excludes(const JsonObject& block, QuantConfig& config);
// kv_cache_quant_algo (a string) or kv_cache_scheme (an object or a string).
Result<void> read_kv_cache(const JsonObject& block, QuantConfig& config);

}  // namespace nibble::checkpoint
