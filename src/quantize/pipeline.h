// BF16 (or FP8) checkpoint in, NVFP4 checkpoint in the ModelOpt layout out. Streaming: memory holds
// one group of linears at a time. Runs on one caller thread and a pool of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "quantize/report.h"

namespace nibble::quantize {

struct QuantizeOptions {
  std::string source;
  std::string destination;  // must not hold a checkpoint yet
  std::vector<std::string> exclude;
  uint64_t max_shard_bytes = 4'000'000'000;
  int num_threads = 0;  // 0: all usable CPUs
  bool show_progress = true;
};

// config.json is written last: a directory without it is not a finished checkpoint. Throws
// SystemError when the disk fails.
Result<QuantizeReport> quantize(const QuantizeOptions& options);

}  // namespace nibble::quantize
