// What `nibble inspect` computes: everything that can be said about a checkpoint without running
// it, all problems in one pass, servable or not. Reads headers and, unless told not to, all block
// scales (about a tenth of a 4-bit file).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "tensor/device.h"

namespace nibble::examine {

struct InspectOptions {
  std::string directory;
  bool scan_scales = true;
  // Whose kernels are named; a GPU that is not there is taken for a Hopper one.
  Device::Kind device = Device::Kind::Cpu;
};

// Counts over the block scales of one linear (or of several, added up).
struct ScaleStatistics {
  int64_t blocks = 0;
  int64_t zero = 0;
  int64_t smallest = 0;  // code 1: values below were lost
  int64_t largest = 0;   // code 0x7E: 448
  int64_t nan = 0;
  int64_t negative = 0;
  float min = 0;  // of the positive ones
  float max = 0;

  void add(const ScaleStatistics& other);
};
ScaleStatistics scale_statistics(std::span<const std::byte> e4m3_codes);

struct InspectedLinear {
  checkpoint::LinearInfo info;
  std::string mode;    // "w4a16", "bf16", ... as it would run here by default
  std::string kernel;  // the GEMM backend it would get, its tiles by rows, or why there is none
  ScaleStatistics scales;
};

// Linears that differ only in layer and expert numbers.
struct LinearPattern {
  std::string pattern;  // "model.layers.*.mlp.up_proj"
  int64_t count = 0;
  InspectedLinear example;  // the first
  bool uniform = true;      // the others have its form and sizes
  uint64_t size_bytes = 0;
  float min_global_scale = 0;
  float max_global_scale = 0;
  int64_t with_input_scale = 0;
  ScaleStatistics scales;
};

struct Inspection {
  std::string directory;
  checkpoint::ModelConfig config;
  checkpoint::QuantConfig quant;
  std::vector<InspectedLinear> linears;  // sorted by module
  std::vector<LinearPattern> patterns;
  std::vector<checkpoint::Problem> problems;  // errors first
  int64_t num_tensors = 0;
  uint64_t total_bytes = 0;
  uint64_t linear_bytes = 0;
  int64_t linear_weights = 0;  // numbers, not bytes

  bool servable() const;
};

Result<Inspection> inspect(const InspectOptions& options);

// "model.layers.3.mlp.experts.7.up_proj" -> "model.layers.*.mlp.experts.*.up_proj"
std::string name_pattern_of(const std::string& module);

boost::json::object to_json(const Inspection& inspection);
std::string to_text(const Inspection& inspection);  // tables for the terminal

}  // namespace nibble::examine
