#include "engine/model_options.h"

#include "base/thread_pool.h"
#include "tensor/device_api.h"

namespace nibble::engine {

model::ModelOptions model_options(const EngineConfig& config) {
  const bool cpu = config.device.kind == Device::Kind::Cpu;
  model::ModelOptions options;
  options.device = config.device;
  options.isa =
      cpu ? static_cast<int>(config.cpu_isa) : device_api(config.device).isa(config.device);
  options.nvfp4_mode = config.nvfp4_mode;
  options.nvfp4_rules = config.nvfp4_rules;
  options.online_nvfp4 = config.online_nvfp4;
  options.fp4_gemm_backend = config.fp4_gemm_backend;
  options.moe_runner_backend = config.moe_runner_backend;
  options.attention_backend = config.attention_backend;
  options.fused_step = config.fused_step;
  options.kv_dtype = config.kv_dtype;
  options.page_size = config.page_size;
  options.context_length = config.context_length;
  return options;
}

int num_threads_of(const EngineConfig& config) {
  return config.num_threads > 0 ? config.num_threads : num_usable_cpus();
}

}  // namespace nibble::engine
