// What quantization did to each linear.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <boost/json.hpp>

namespace nibble::quantize {

struct TensorReport {
  std::string module;
  int64_t n = 0;
  int64_t k = 0;
  float amax = 0;              // of the tensor itself
  float global_scale = 0;      // of its group
  double relative_error = 0;   // ||w - q|| / ||w||, Frobenius norms
  double max_error = 0;        // largest |w - q|
  int64_t zero_blocks = 0;     // blocks of 16 zeros
  int64_t smallest_scale = 0;  // other blocks at the smallest block scale: values lost to underflow
};

struct QuantizeReport {
  std::vector<TensorReport> tensors;                      // sorted by module
  std::vector<std::pair<std::string, std::string>> kept;  // linear that stays, reason
  uint64_t source_bytes = 0;
  uint64_t output_bytes = 0;
  int num_shards = 0;
  double seconds = 0;

  double mean_relative_error() const;  // 0 without tensors
};

boost::json::object to_json(const QuantizeReport& report);

// A few lines for the terminal: sizes, mean error, the worst tensors, what stayed and why.
std::string summary_text(const QuantizeReport& report);

}  // namespace nibble::quantize
