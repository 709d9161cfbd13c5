#include "apps/engine_flags.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <CLI/CLI.hpp>

#include "apps/number_range.h"
#include "apps/upstream_flags.h"
#include "base/cpu_info.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/kv_cache.h"
#include "tensor/device_api.h"

namespace nibble::apps {

namespace {

// "auto", "cpu", "cuda", "cuda:1".
Result<Device> resolve_device(const std::string& text) {
  const DeviceApi* cuda = find_device_api(Device::Kind::Cuda);
  const int num_cuda = cuda != nullptr ? cuda->num_devices() : 0;
  if (text == "cpu" || (text == "auto" && num_cuda == 0)) {
    return Device{};
  }
  int index = 0;
  if (text.starts_with("cuda:")) {
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data() + 5, end, index);
    if (code != std::errc{} || stop != end || index < 0) {
      return invalid("expected a number after 'cuda:', found '" + text.substr(5) + "'", "--device");
    }
  } else if (text != "auto" && text != "cuda") {
    return invalid("expected auto, cpu, cuda or cuda:N, found '" + text + "'", "--device");
  }
  if (index >= num_cuda) {
    return invalid("asked for " + text + ", but this machine offers " + std::to_string(num_cuda) +
                       " CUDA devices" + (cuda == nullptr ? " (built without CUDA)" : ""),
                   "--device");
  }
  return Device{Device::Kind::Cuda, static_cast<int16_t>(index)};
}

Result<CpuIsa> resolve_isa(const std::string& text) {
  const CpuIsa found = detect_cpu_isa();
  if (text == "auto") {
    return found;
  }
  const CpuIsa wanted = TRY(parse_cpu_isa(text));
  if (wanted > found) {
    return invalid("this CPU offers " + std::string(to_string(found)) + " at most, not " + text,
                   "--cpu-isa");
  }
  return wanted;
}

// What is left takes a staged weight update of a model that fills a quarter of the card.
constexpr double kGpuMemoryFraction = 0.7;

// {"model.layers.3.*": "w4a16", ...}; the order counts. No file: no rules.
Result<Nvfp4ModeRules> read_mode_rules(const std::string& path) {
  Nvfp4ModeRules rules;
  if (path.empty()) {
    return rules;
  }
  const auto value = TRY(parse_json_file(path));
  const auto object = TRY(JsonObject::from(value, path));
  for (const auto& entry : object.raw()) {
    const std::string pattern(entry.key());
    const auto mode = parse_nvfp4_mode(TRY(object.get_string(pattern)));
    if (!mode) {
      return invalid(mode.error().message, object.path_of(pattern));
    }
    rules.push_back({pattern, *mode});
  }
  return rules;
}

void set_if_given(int64_t& target, int64_t value) {
  if (value > 0) {
    target = value;
  }
}

}  // namespace

void add_logging_flags(CLI::App& command, EngineFlags& flags) {
  command.add_option("--log-level", flags.log_level, "error, warn, info or debug")
      ->capture_default_str();
  command.add_option("--log-format", flags.log_format, "text or json (one object a line)")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

void add_engine_flags(CLI::App& command, EngineFlags& flags) {
  command
      .add_option("--model-path,--model",
                  flags.model_path,
                  "checkpoint directory (config.json, *.safetensors)")
      ->group("Model");
  command
      .add_option("--tokenizer-path",
                  flags.tokenizer_path,
                  "directory with tokenizer.json; default: the model's")
      ->group("Model");
  command
      .add_option("--context-length",
                  flags.context_length,
                  "most tokens of prompt and answer together; default: config.json")
      ->check(CLI::PositiveNumber)
      ->group("Model");

  command.add_option("--device", flags.device, "auto, cpu, cuda or cuda:N")
      ->capture_default_str()
      ->group("Compute");
  command
      .add_option("--num-threads", flags.num_threads, "CPU threads; 0: all this process may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->group("Compute");
  command.add_option("--cpu-isa", flags.cpu_isa, "auto, avx512_bf16, avx512, avx2 or scalar")
      ->capture_default_str()
      ->group("Compute");
  command
      .add_option("--quantization",
                  flags.quantization,
                  "nvfp4_online: quantize a BF16 or FP8 checkpoint while it loads; other values "
                  "change nothing, the checkpoint says how it is quantized")
      ->group("Model");
  command
      .add_option("--nvfp4-mode",
                  flags.nvfp4_mode,
                  "what NVFP4 layers do with activations: auto, w4a16 or w4a4")
      ->capture_default_str()
      ->group("Compute");
  command
      .add_option("--nvfp4-mode-file",
                  flags.nvfp4_mode_file,
                  "JSON object of linears by name or wildcard and their mode, first match; the "
                  "others take --nvfp4-mode")
      ->group("Compute");
  command
      .add_option("--fp4-gemm-backend,--fp4-gemm-runner-backend",
                  flags.fp4_gemm_backend,
                  "kernel family or name; auto: the first that supports the layer")
      ->capture_default_str()
      ->group("Compute");
  command
      .add_option("--moe-runner-backend",
                  flags.moe_runner_backend,
                  "kernel family or name of the experts; auto: the first that supports them")
      ->capture_default_str()
      ->group("Compute");
  command
      .add_option("--moe-a2a-backend",
                  flags.moe_a2a_backend,
                  "upstream's names for expert dispatch between devices; none here")
      ->capture_default_str()
      ->group("Compute");
  command.add_option("--attention-backend", flags.attention_backend, "auto or a backend's name")
      ->capture_default_str()
      ->group("Compute");

  command
      .add_option(
          "--cuda-step",
          flags.cuda_step,
          "decode steps of one token on Hopper: ops (the kernels one after another), fused "
          "(one kernel, where it takes the model; the same bits) or auto (the one expected to be "
          "faster)")
      ->check(CLI::IsMember({"auto", "fused", "ops"}))
      ->capture_default_str()
      ->group("Compute");

  command
      .add_option("--max-running-requests", flags.max_running_requests, "sequences in one batch")
      ->check(CLI::PositiveNumber)
      ->group("Scheduling");
  command
      .add_option("--max-total-tokens",
                  flags.max_total_tokens,
                  "tokens the KV cache holds; default: from free memory")
      ->check(CLI::PositiveNumber)
      ->group("Scheduling");
  command
      .add_option("--mem-fraction-static",
                  flags.mem_fraction_static,
                  "share of free memory for the KV cache, in (0, 1)")
      ->check(number_range(0.01, 0.99))
      ->group("Scheduling");
  command
      .add_option("--chunked-prefill-size", flags.chunked_prefill_size, "most prompt tokens a step")
      ->check(CLI::PositiveNumber)
      ->group("Scheduling");
  command.add_option("--page-size", flags.page_size, "tokens a KV page")
      ->check(CLI::PositiveNumber)
      ->group("Scheduling");
  command
      .add_option("--max-queued-requests",
                  flags.max_queued_requests,
                  "waiting requests beyond this are refused with 503")
      ->check(CLI::PositiveNumber)
      ->group("Scheduling");
  command
      .add_flag("--disable-radix-cache",
                flags.disable_radix_cache,
                "compute every prompt anew instead of reusing cached prefixes")
      ->group("Scheduling");
  command
      .add_option(
          "--kv-cache-dtype",
          flags.kv_cache_dtype,
          "auto (fp8_e4m3 where the checkpoint asks for FP8, else bfloat16), bfloat16 (bf16), "
          "fp8_e4m3: half the memory, scaled as the checkpoint says")
      ->check(CLI::IsMember({"auto", "bfloat16", "bf16", "fp8_e4m3"}))
      ->group("Scheduling");
  command
      .add_flag("--disable-cuda-graph",
                flags.disable_cuda_graph,
                "compute decode steps kernel by kernel instead of replaying captured graphs")
      ->group("Scheduling");
  command
      .add_flag(
          "--disable-overlap-schedule",
          flags.disable_overlap_schedule,
          "begin a decode step only when the tokens of the one before are known (the same bits)")
      ->group("Scheduling");
  command
      .add_flag(
          "--reuse-generated-kv",
          flags.reuse_generated_kv,
          "cuda: prefixes may end in generated tokens; answers then depend on what is cached, "
          "in the last bits")
      ->group("Scheduling");
  command
      .add_option("--cuda-graph-max-bs,--cuda-graph-max-bs-decode",
                  flags.cuda_graph_max_bs,
                  "largest batch with a captured graph; default: --max-running-requests")
      ->check(CLI::Range(1, 512))
      ->group("Scheduling");
  add_logging_flags(command, flags);
}

DType resolve_kv_dtype(const std::string& asked, const std::string& model_path) {
  if (asked == "auto") {
    const auto checkpoint = checkpoint::Checkpoint::open(model_path);
    return checkpoint && checkpoint::asks_for_fp8_kv_cache(checkpoint->quant()) ? DType::E4M3
                                                                                : DType::BF16;
  }
  return asked == "fp8_e4m3" ? DType::E4M3 : DType::BF16;
}

Result<engine::EngineConfig> resolve_engine_config(const EngineFlags& flags) {
  configure_logging(TRY(parse_log_level(flags.log_level)),
                    flags.log_format == "json" ? LogFormat::Json : LogFormat::Text);
  const BackendChoice backends = TRY(resolve_backends(
      flags.fp4_gemm_backend, flags.nvfp4_mode, flags.moe_runner_backend, flags.moe_a2a_backend));
  for (const std::string& notice : backends.notices) {
    LOG(info, "notice", {"flag", notice});
  }
  if (flags.model_path.empty()) {
    return invalid("required: the checkpoint's directory", "--model-path");
  }
  engine::EngineConfig config;
  config.model_path = flags.model_path;
  config.device = TRY(resolve_device(flags.device));
  config.num_threads = flags.num_threads;
  config.cpu_isa = TRY(resolve_isa(flags.cpu_isa));
  config.nvfp4_mode = TRY(parse_nvfp4_mode(backends.nvfp4_mode));
  config.nvfp4_rules = TRY(read_mode_rules(flags.nvfp4_mode_file));
  config.online_nvfp4 = flags.quantization == "nvfp4_online";
  if (!flags.quantization.empty() && !config.online_nvfp4) {
    LOG(info,
        "notice",
        {"flag", "--quantization " + flags.quantization},
        {"why", "the checkpoint says how it is quantized"});
  }
  config.fp4_gemm_backend = backends.fp4_gemm_backend;
  config.moe_runner_backend = backends.moe_runner_backend;
  config.attention_backend = flags.attention_backend;
  if (flags.cuda_step != "auto") {
    config.fused_step = flags.cuda_step == "fused";
  }
  if (flags.mem_fraction_static > 0) {
    config.memory_fraction = flags.mem_fraction_static;
  } else if (config.device.kind == Device::Kind::Cuda) {
    config.memory_fraction = kGpuMemoryFraction;
  }
  config.kv_dtype = resolve_kv_dtype(flags.kv_cache_dtype, config.model_path);
  set_if_given(config.context_length, flags.context_length);
  set_if_given(config.max_total_tokens, flags.max_total_tokens);
  set_if_given(config.page_size, flags.page_size);
  set_if_given(config.max_running_requests, flags.max_running_requests);
  set_if_given(config.chunked_prefill_size, flags.chunked_prefill_size);
  set_if_given(config.max_queued_requests, flags.max_queued_requests);
  config.prefix_cache = !flags.disable_radix_cache;
  config.decode_graphs = !flags.disable_cuda_graph;
  config.overlap = !flags.disable_overlap_schedule;
  config.reuse_generated_kv = flags.reuse_generated_kv;
  set_if_given(config.max_graph_requests, flags.cuda_graph_max_bs);
  return config;
}

}  // namespace nibble::apps
