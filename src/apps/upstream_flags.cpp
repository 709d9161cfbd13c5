#include "apps/upstream_flags.h"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace nibble::apps {

namespace {

constexpr std::string_view kOneGpu = "this server runs one model on one device";

constexpr UpstreamFlag kFlags[] = {
    {"--trust-remote-code", false, "", "nothing is run from a checkpoint"},
    {"--revision", true, "", "checkpoints are local directories"},
    {"--download-dir", true, "", "checkpoints are local directories"},
    {"--tokenizer-mode", true, "auto fast", "tokenizer.json is read by nibble's own tokenizer"},
    {"--load-format", true, "auto safetensors", "checkpoints are safetensors"},
    {"--model-loader-extra-config", true, "", "the loader decides itself"},
    {"--weight-loader-disable-mmap", false, "", "files are never mapped"},
    {"--dtype", true, "auto bfloat16", "activations are bfloat16"},
    {"--modelopt-quant", true, "", "the checkpoint says how it is quantized"},
    {"--tp-size,--tp,--tensor-parallel-size", true, "1", kOneGpu},
    {"--dp-size,--dp,--data-parallel-size", true, "1", kOneGpu},
    {"--ep-size,--ep,--expert-parallel-size", true, "1", kOneGpu},
    {"--pp-size,--pipeline-parallel-size", true, "1", kOneGpu},
    {"--moe-dense-tp-size", true, "1", kOneGpu},
    {"--moe-dp-size", true, "1", kOneGpu},
    {"--nnodes", true, "1", kOneGpu},
    {"--node-rank", true, "0", kOneGpu},
    {"--base-gpu-id", true, "0", "use --device cuda:N"},
    {"--enable-dp-attention", false, "", kOneGpu},
    {"--enable-dp-lm-head", false, "", kOneGpu},
    {"--load-balance-method", true, "", kOneGpu},
    {"--fp8-gemm-backend", true, "", "the first kernel that supports the layer is used"},
    {"--bf16-gemm-backend", true, "", "the first kernel that supports the layer is used"},
    {"--prefill-attention-backend", true, "", "the first kernel that supports the model is used"},
    {"--decode-attention-backend", true, "", "the first kernel that supports the model is used"},
    {"--sampling-backend", true, "", "sampling depends on seed and position only, everywhere"},
    {"--grammar-backend", true, "", "constrained decoding is not part of this build"},
    {"--max-prefill-tokens", true, "", "--chunked-prefill-size bounds a step"},
    {"--prefill-max-requests", true, "", "--max-running-requests bounds a step"},
    {"--schedule-policy", true, "fcfs", "requests are admitted in the order they came"},
    {"--schedule-conservativeness", true, "", "pages are counted, not estimated"},
    {"--radix-eviction-policy", true, "lru", "the least recently used leaf is evicted first"},
    {"--enable-mixed-chunk", false, "", "the scheduler decides"},
    {"--disable-chunked-prefix-cache", false, "", "the scheduler decides"},
    {"--disable-cuda-graph-padding", false, "", "the engine decides"},
    {"--disable-flashinfer-autotune", false, "", "kernels are chosen by rule, never by timing"},
    {"--disable-shared-experts-fusion", false, "", "shared experts are not fused"},
    {"--enable-metrics", false, "", "/metrics is always there"},
    {"--enable-memory-saver", false, "", "release and resume are always available"},
    {"--enable-weights-cpu-backup", false, "", "weights are read again from the checkpoint"},
    {"--enable-cache-report", false, "", "cached tokens are always reported"},
    {"--decode-log-interval", true, "", "/v1/loads and /metrics have the numbers"},
    {"--watchdog-timeout", true, "", "/health_generate tells whether tokens come out"},
    {"--skip-server-warmup", false, "", "there is no warm-up request"},
    {"--log-requests", false, "", "requests are logged at --log-level debug"},
    {"--log-requests-level", true, "", "requests are logged at --log-level debug"},
    {"--flashinfer-a2a-dispatch-type", true, "auto bf16", "there is no all-to-all"},
    {"--deepep-mode", true, "", "there is no all-to-all"},
    {"--speculative-algorithm", true, "", "there is no speculative decoding"},
    {"--json-model-override-args", true, "{}", "config.json is read as it is"},
    {"--disaggregation-mode", true, "null", "prefill and decode run in one engine"},
};

constexpr std::string_view kNative =
    "asks for one of upstream's kernels; nibble's own kernel for this device is used";
constexpr std::string_view kWeightOnly = "means weight-only FP4";
constexpr UpstreamBackend kFp4Backends[] = {
    {"flashinfer_cutedsl", "auto", "", kNative},
    {"flashinfer_cutlass", "auto", "", kNative},
    {"flashinfer_cudnn", "auto", "", kNative},
    {"flashinfer_trtllm", "auto", "", kNative},
    {"cutedsl", "auto", "", kNative},
    {"cutlass", "auto", "", kNative},
    {"cudnn", "auto", "", kNative},
    {"trtllm", "auto", "", kNative},
    {"marlin", "auto", "w4a16", kWeightOnly},
    {"aiter", "", "", "is only supported on ROCm"},
    {"triton", "", "", "is only supported on ROCm"},
};
constexpr UpstreamBackend kMoeRunners[] = {
    {"flashinfer_cutedsl", "auto", "", kNative},
    {"flashinfer_cutlass", "auto", "", kNative},
    {"flashinfer_trtllm", "auto", "", kNative},
    {"flashinfer_trtllm_routed", "auto", "", kNative},
    {"experimental_sgl_trtllm", "auto", "", kNative},
    {"marlin", "auto", "w4a16", kWeightOnly},
    {"experimental_sgl_marlin", "auto", "w4a16", kWeightOnly},
    {"deep_gemm", "", "", "has no NVFP4 kernels"},
    {"triton", "", "", "has no NVFP4 kernels"},
    {"triton_kernel", "", "", "has no NVFP4 kernels"},
    {"cutlass", "", "", "has no NVFP4 kernels; flashinfer_cutlass is accepted"},
    {"aiter", "", "", "is only supported on ROCm"},
    {"flashinfer_mxfp4", "", "", "is for MXFP4 checkpoints"},
};

const UpstreamBackend* find_backend(std::span<const UpstreamBackend> table, std::string_view name) {
  const auto found = std::find_if(
      table.begin(), table.end(), [&](const UpstreamBackend& entry) { return entry.name == name; });
  return found == table.end() ? nullptr : &*found;
}

std::string accepted_names(std::span<const UpstreamBackend> table) {
  std::string names;
  for (const UpstreamBackend& entry : table) {
    if (!entry.backend.empty()) {
      names += names.empty() ? "" : ", ";
      names += entry.name;
    }
  }
  return names;
}

std::string first_name(const UpstreamFlag& flag) {
  return std::string(flag.names.substr(0, flag.names.find(',')));
}

bool is_allowed(const UpstreamFlag& flag, std::string_view value) {
  const std::string padded = " " + std::string(flag.allowed) + " ";
  return flag.allowed.empty() || padded.find(" " + std::string(value) + " ") != std::string::npos;
}

}  // namespace

std::span<const UpstreamFlag> upstream_flags() { return kFlags; }
std::span<const UpstreamBackend> upstream_fp4_backends() { return kFp4Backends; }
std::span<const UpstreamBackend> upstream_moe_runners() { return kMoeRunners; }

void add_upstream_flags(CLI::App& command, std::vector<GivenFlag>& given) {
  for (const UpstreamFlag& flag : kFlags) {
    const std::string names(flag.names);
    const std::string help = "upstream's; " + std::string(flag.notice);
    CLI::Option* option = nullptr;
    if (flag.takes_value) {
      option = command.add_option_function<std::string>(
          names,
          [&flag, &given](const std::string& value) { given.push_back({&flag, value}); },
          help);
    } else {
      option = command.add_flag_function(
          names, [&flag, &given](int64_t) { given.push_back({&flag, ""}); }, help);
    }
    option->group("");  // accepted, not advertised
  }
}

Result<std::vector<std::string>> check_upstream_flags(std::span<const GivenFlag> given) {
  std::vector<std::string> notices;
  for (const auto& [flag, value] : given) {
    if (flag->takes_value && !is_allowed(*flag, value)) {
      return unsupported(
          fmt::format("{} is not available: {}; accepted: {}", value, flag->notice, flag->allowed),
          first_name(*flag));
    }
    notices.push_back(fmt::format("{} has no effect: {}", first_name(*flag), flag->notice));
  }
  return notices;
}

namespace {

// What a flag's value becomes; upstream's names leave a notice and may imply the mode.
Result<std::string> resolve_name(std::span<const UpstreamBackend> table,
                                 std::string_view flag,
                                 const std::string& name,
                                 const std::string& nvfp4_mode,
                                 BackendChoice& choice) {
  const UpstreamBackend* entry = find_backend(table, name);
  if (entry == nullptr) {
    return name;  // nibble's own, or told apart where the kernels are known
  }
  if (entry->backend.empty()) {
    return unsupported(fmt::format("{} {}; upstream's names that are accepted: {}",
                                   entry->name,
                                   entry->reason,
                                   accepted_names(table)),
                       std::string(flag));
  }
  choice.notices.push_back(fmt::format("{} {} {}", flag, entry->name, entry->reason));
  if (!entry->nvfp4_mode.empty()) {
    if (nvfp4_mode != "auto" && nvfp4_mode != entry->nvfp4_mode) {
      return invalid(
          fmt::format("{} {}, --nvfp4-mode says {}", entry->name, entry->reason, nvfp4_mode),
          std::string(flag));
    }
    choice.nvfp4_mode = entry->nvfp4_mode;
  }
  return std::string(entry->backend);
}

}  // namespace

Result<BackendChoice> resolve_backends(const std::string& fp4_gemm_backend,
                                       const std::string& nvfp4_mode,
                                       const std::string& moe_runner_backend,
                                       const std::string& moe_a2a_backend) {
  BackendChoice choice;
  choice.nvfp4_mode = nvfp4_mode;
  choice.fp4_gemm_backend =
      TRY(resolve_name(kFp4Backends, "--fp4-gemm-backend", fp4_gemm_backend, nvfp4_mode, choice));
  choice.moe_runner_backend = TRY(
      resolve_name(kMoeRunners, "--moe-runner-backend", moe_runner_backend, nvfp4_mode, choice));
  if (moe_a2a_backend != "none") {
    return unsupported(fmt::format("{} needs experts spread over several devices, and {}; "
                                   "accepted: none",
                                   moe_a2a_backend,
                                   kOneGpu),
                       "--moe-a2a-backend");
  }
  return choice;
}

}  // namespace nibble::apps
