// `nibble bench gemm`: time of one GEMM over shapes, row counts and modes, beside the limits of the
// machine that the same run measured. Weights are random codes (speed only) and cold: enough copies
// of each matrix are walked in turn to exceed every cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/value.hpp>

#include "base/error.h"
#include "quant/quant_mode.h"
#include "tensor/device.h"

namespace nibble::examine {

struct GemmShape {
  std::string name;  // "q8.qkv", or "4096x4096" for one given by size
  int64_t n = 0;
  int64_t k = 0;
};

// The layer shapes of Qwen3-8B (q8), Llama-3-70B (l70), Qwen3-30B-A3B (q30), Qwen3-0.6B (q06) and
// SmolLM2-135M (smol).
const std::vector<GemmShape>& known_gemm_shapes();
// A known name, a family ("smol": all of it) or NxK.
Result<std::vector<GemmShape>> parse_gemm_shapes(std::string_view text);

// What another program needed for a product on this machine: a column beside our own time.
struct PeerGemmRow {
  std::string op;  // "w4a16", ...
  int64_t n = 0;
  int64_t k = 0;
  int64_t m = 0;
  int threads = 0;  // 0: any
  double us = 0;
};
struct PeerGemms {
  std::string name;
  std::vector<PeerGemmRow> rows;
};
// {"name": "llama.cpp NVFP4", "rows": [{"op", "n", "k", "m", "us", "threads" if it matters}]}; what
// to_json() of another run wrote is such a file, too.
Result<PeerGemms> read_peer_gemms(const std::string& path);

struct BenchGemmOptions {
  Device device;
  int num_threads = 0;  // 0: all usable
  std::string cpu_isa = "auto";
  std::string backend = "auto";
  std::vector<GemmShape> shapes;
  std::vector<int64_t> m{1, 512};
  std::vector<QuantMode> modes{kW4A16};
  double seconds = 0.3;  // of measuring, each row
  PeerGemms peer;
};

// "w4a16", "w4a4", "bf16", "fp8"
Result<QuantMode> parse_bench_mode(std::string_view text);

struct BenchGemmRow {
  std::string op;
  GemmShape shape;
  int64_t m = 0;
  std::string kernel;  // registry name, or empty with why_not
  std::string why_not;
  std::string variant;        // what the kernel chose for m, where it has a choice
  double us = 0;              // median of one call
  int64_t weight_bytes = 0;   // what a call must read: packed weights and scales
  double read_gbps = 0;       // of the machine, measured beside this row
  double peak_gflops = 0;     // of the machine, for this op
  double vendor_us = 0;       // BF16 by the vendor's library, measured beside this row; 0: none
  double peer_us = 0;         // of the peer's row of the same sizes; 0: none
  double read_us() const;     // weight_bytes at read_gbps
  double compute_us() const;  // 2 m n k at peak_gflops
  double floor_us() const;    // the larger of the two
};

struct BenchGemmReport {
  std::string machine;
  std::string isa;
  int num_threads = 0;
  std::string peer;  // its name, empty without one
  std::vector<BenchGemmRow> rows;
};

Result<BenchGemmReport> bench_gemm(const BenchGemmOptions& options);

// {"machine": {...}, "rows": [{"op", "shape", "n", "k", "m", "threads", "kernel", "us", "floor_us",
// "read_us", "cublas_us", "peer_us", "gbps", "tflops", ...}]}; what does not apply is null.
boost::json::value to_json(const BenchGemmReport& report);
std::string to_text(const BenchGemmReport& report);  // a table

}  // namespace nibble::examine
