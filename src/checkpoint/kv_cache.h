// What a checkpoint asks of the KV cache.
#pragma once

#include "checkpoint/quant_config.h"

namespace nibble::checkpoint {

// Keys and values in E4M3, as upstream's `--kv-cache-dtype auto` takes it.
inline bool asks_for_fp8_kv_cache(const QuantConfig& config) {
  return config.kv_cache_algo == "FP8" || config.kv_cache_algo == "FLOAT8";
}

}  // namespace nibble::checkpoint
