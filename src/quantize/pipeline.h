// BF16, FP32 or FP8 checkpoint in, NVFP4 checkpoint out. Layer by layer: memory holds one layer's
// weights and statistics, a finished layer is kept in a folder beside the destination until the
// whole is done. Runs on one caller thread and a pool of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "quantize/method.h"
#include "quantize/report.h"
#include "quantize/write.h"

namespace nibble::quantize {

struct QuantizeOptions {
  std::string source;
  std::string destination;  // must not hold a checkpoint yet
  Method method = Method::FourOverSix;
  std::vector<int32_t> calibration;  // token ids, for the methods that need statistics
  std::vector<std::string> exclude;
  std::vector<std::string> fp8;   // patterns of modules that become FP8
  std::optional<double> bits;     // mean bits a weight: the most sensitive matrices become FP8
  std::optional<Precision> head;  // quantize the output head too, untied where it is tied
  Layout layout = Layout::ModelOpt;
  bool weight_only = false;  // no input scales, although calibration knows them
  uint64_t max_shard_bytes = 4'000'000'000;
  int num_threads = 0;  // 0: all usable CPUs
  bool show_progress = true;
  std::stop_token stop;  // looked at between layers: ends the run with Cancelled
};

// The destination appears whole or not at all; what is unfinished lies in "DESTINATION.partial",
// and the same call goes on from there. Throws SystemError when the disk fails.
Result<QuantizeReport> quantize(const QuantizeOptions& options);

// Writes quantize_report.json and .html into a folder.
void write_report(const QuantizeReport& report, const std::string& folder);

}  // namespace nibble::quantize
