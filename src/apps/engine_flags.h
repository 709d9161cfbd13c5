// The flags that serve, generate, chat, eval and bench latency share, and what they become. All
// "auto" values that need no model are resolved here, once; nothing below apps reads flags.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "engine/config.h"
#include "tensor/dtype.h"

namespace CLI {
class App;
}

namespace nibble::apps {

struct EngineFlags {
  std::string model_path;
  std::string tokenizer_path;  // empty: model_path
  std::string device = "auto";
  int num_threads = 0;
  std::string cpu_isa = "auto";
  std::string quantization;
  std::string nvfp4_mode = "auto";
  std::string nvfp4_mode_file;
  std::string fp4_gemm_backend = "auto";
  std::string moe_runner_backend = "auto";
  std::string moe_a2a_backend = "none";
  std::string attention_backend = "auto";
  int64_t context_length = 0;
  int64_t max_total_tokens = 0;
  double mem_fraction_static = 0;  // 0: the engine's default
  int64_t page_size = 0;
  int64_t max_running_requests = 0;
  int64_t chunked_prefill_size = 0;
  int64_t max_queued_requests = 0;
  bool disable_radix_cache = false;
  std::string cuda_step = "auto";
  bool disable_cuda_graph = false;
  bool disable_overlap_schedule = false;
  std::string kv_cache_dtype = "auto";
  bool reuse_generated_kv = false;
  int64_t cuda_graph_max_bs = 0;
  std::string log_level = "info";
  std::string log_format = "text";
};

// Adds the flags to a command; `flags` must outlive it.
void add_engine_flags(CLI::App& command, EngineFlags& flags);
void add_logging_flags(CLI::App& command, EngineFlags& flags);

// Of the KV cache of the checkpoint at `model_path`, for a value of --kv-cache-dtype. What is wrong
// with the checkpoint is said when it is loaded.
DType resolve_kv_dtype(const std::string& asked, const std::string& model_path);

// Also configures logging.
Result<engine::EngineConfig> resolve_engine_config(const EngineFlags& flags);

}  // namespace nibble::apps
