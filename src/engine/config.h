// The resolved engine configuration: what flags and environment became, printed at start. Nothing
// below apps reads flags or the environment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/cpu_info.h"
#include "quant/mode_rules.h"
#include "quant/quant_mode.h"
#include "tensor/device.h"
#include "tensor/dtype.h"

namespace nibble::engine {

struct EngineConfig {
  std::string model_path;
  Device device;
  int num_threads = 0;              // CPU; 0: all usable
  CpuIsa cpu_isa = CpuIsa::Scalar;  // resolved by the caller (detect_cpu_isa or the flag)
  Nvfp4Mode nvfp4_mode = Nvfp4Mode::Auto;
  Nvfp4ModeRules nvfp4_rules;  // --nvfp4-mode-file
  bool online_nvfp4 = false;   // --quantization nvfp4_online
  std::string fp4_gemm_backend = "auto";
  std::string moe_runner_backend = "auto";
  std::string attention_backend = "auto";
  // CUDA: decode steps of one token as one kernel, where there is one; unset: where that is
  // expected to be faster.
  std::optional<bool> fused_step;
  DType kv_dtype = DType::BF16;  // of the KV cache: BF16 or E4M3
  int64_t context_length = 0;    // 0: from config.json
  int64_t max_total_tokens = 0;  // 0: from memory_fraction
  double memory_fraction = 0.5;  // of free memory, for the KV cache
  int64_t page_size = 16;
  int64_t max_running_requests = 64;
  int64_t chunked_prefill_size = 512;  // tokens a step
  int64_t max_queued_requests = 4096;
  int64_t max_staging_bytes = -1;  // spare memory of a weight update; negative: what is free
  bool prefix_cache = true;
  bool decode_graphs = true;        // CUDA: replay decode steps from captured graphs
  bool overlap = true;              // CUDA: decode steps begin before the tokens of the step before
                                    // are known to the host
  int64_t max_graph_requests = 0;   // largest captured batch; 0: max_running_requests
  bool reuse_generated_kv = false;  // CUDA: let prefixes reuse KV that decode steps wrote; always
                                    // so on the CPU, where both kernels give the same bits
};

}  // namespace nibble::engine
