// Engine::create: loads the model, sizes scratch and KV cache, and what submit() refuses.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/json.h"
#include "base/log.h"
#include "engine/engine_impl.h"
#include "engine/model_options.h"

namespace nibble::engine {

namespace {

// Without a limit from the user the CPU's cache holds this many tokens, or two full contexts.
constexpr int64_t kDefaultCpuTokens = 65536;
// Of what scratch memory is proportional to: products with two sizes of a model fit 63 bits.
constexpr int64_t kMaxStepSize = int64_t{1} << 20;
constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kMostGraphRequests = 512;

Result<void> check_config(const EngineConfig& config) {
  const auto between =
      [](int64_t value, int64_t low, int64_t high, const char* field) -> Result<void> {
    if (value < low || value > high) {
      return invalid(fmt::format("expected {} to {}, found {}", low, high, value), field);
    }
    return {};
  };
  TRY(between(config.page_size, 1, kMaxStepSize, "page_size"));
  TRY(between(config.max_running_requests, 1, kMaxStepSize, "max_running_requests"));
  TRY(between(config.chunked_prefill_size, 1, kMaxStepSize, "chunked_prefill_size"));
  TRY(between(config.max_total_tokens, 0, INT32_MAX, "max_total_tokens"));
  TRY(between(config.max_graph_requests, 0, kMostGraphRequests, "max_graph_requests"));
  TRY(between(config.num_threads, 0, kMaxThreads, "num_threads"));
  if (!(config.memory_fraction > 0 && config.memory_fraction <= 1)) {
    return invalid(fmt::format("expected more than 0 and at most 1, found {}",
                               format_number(config.memory_fraction)),
                   "memory_fraction");
  }
  const DeviceApi* api = find_device_api(config.device.kind);
  const int devices = api == nullptr ? 0 : api->num_devices();
  if (config.device.index < 0 || config.device.index >= devices) {
    return unsupported(fmt::format("no {} device {}: {} found",
                                   to_string(config.device.kind),
                                   config.device.index,
                                   devices),
                       "device");
  }
  return {};
}

Result<int64_t> choose_pages(const EngineConfig& config,
                             const KvGeometry& geometry,
                             int64_t context_length) {
  const int64_t page_size = geometry.page_size;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  device_api(config.device).memory_info(config.device, &free_bytes, &total_bytes);
  const auto usable =
      static_cast<int64_t>(static_cast<double>(free_bytes) * config.memory_fraction) /
      geometry.page_bytes();
  int64_t pages = usable;
  std::string why = fmt::format("{} of the free memory", config.memory_fraction);
  if (config.max_total_tokens > 0) {
    pages = config.max_total_tokens / page_size;
    why = "max_total_tokens";
  } else {
    int64_t most = config.max_running_requests * context_length;
    if (config.device.kind == Device::Kind::Cpu) {
      most = std::min(most, std::max(kDefaultCpuTokens, 2 * context_length));
    }
    most = (most + page_size - 1) / page_size;
    if (most < pages) {
      pages = most;
      why = "enough for what can run";
    }
  }
  if (pages < 1) {
    return fail(ErrorCode::Overloaded,
                fmt::format("no room for the KV cache: one page of {} tokens needs {} bytes, {} "
                            "bytes are free",
                            page_size,
                            geometry.page_bytes(),
                            free_bytes));
  }
  LOG(info,
      "kv cache",
      {"pages", pages},
      {"tokens", pages * page_size},
      {"dtype", to_string(geometry.dtype)},
      {"bytes", pages * geometry.page_bytes()},
      {"why", why});
  return pages;
}

// Decode steps of every size worth it, on devices that have graphs.
Result<void> capture_graphs(const EngineConfig& config, const KvPool& pool, Runner& runner) {
  if (!config.decode_graphs || device_api(config.device).begin_capture == nullptr) {
    return {};
  }
  const auto begin = std::chrono::steady_clock::now();
  const int64_t wanted =
      config.max_graph_requests > 0 ? config.max_graph_requests : kMostGraphRequests;
  const int64_t most = std::min({config.max_running_requests, wanted, kMostGraphRequests});
  TRY(runner.capture_graphs(decode_graph_sizes(most), pool));
  LOG(info,
      "decode graphs captured",
      {"graphs", static_cast<int64_t>(runner.graphs().count())},
      {"largest", most},
      {"bytes", static_cast<int64_t>(runner.graphs().memory_bytes())},
      {"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()});
  return {};
}

Result<void> in_range(bool ok, std::string_view field, std::string_view expected, double found) {
  if (ok) {
    return {};
  }
  return invalid(fmt::format("expected {}, found {}", expected, found),
                 fmt::format("sampling_params.{}", field));
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const EngineConfig& config) {
  TRY(check_config(config));
  const auto begin = std::chrono::steady_clock::now();
  EngineConfig resolved = config;
  resolved.num_threads = num_threads_of(config);
  auto since = begin;
  const auto lap = [&since] {
    const auto start = std::exchange(since, std::chrono::steady_clock::now());
    return std::chrono::duration<double>(since - start).count();
  };
  StreamOwner stream(resolved.device, resolved.num_threads);
  const double device_seconds = lap();
  std::unique_ptr<model::Model> model =
      TRY(model::load_model(resolved.model_path, model_options(resolved), stream.get()));
  const model::ModelFacts& facts = model->facts();
  for (const std::string& line : facts.layer_table) {
    LOG(info, "layer", {"row", line});
  }
  lap();

  const KvGeometry geometry{
      facts.layers, facts.kv_heads, facts.head_dim, resolved.page_size, facts.kv_dtype};
  const int64_t pages = TRY(choose_pages(resolved, geometry, facts.context_length));
  auto pool = std::make_unique<KvPool>(TRY(KvPool::create(geometry, pages, stream.get())));
  const double cache_seconds = lap();
  const int64_t capacity = std::min(facts.context_length, pages * resolved.page_size);
  const RunnerLimits limits{
      resolved.chunked_prefill_size, resolved.max_running_requests, pool->pages_of(capacity)};
  auto runner = std::make_unique<Runner>(TRY(Runner::create(*model, limits, stream.get())));
  const double scratch_seconds = lap();
  TRY(runner->prepare_decode_step(*pool));
  TRY(capture_graphs(resolved, *pool, *runner));
  const double graph_seconds = lap();
  const model::LoadTimes& times = model->load_times();
  LOG(info,
      "load phases",
      {"device_seconds", device_seconds},
      {"open_seconds", times.open_seconds},
      {"kernels_seconds", times.declare_seconds},
      {"weight_memory_seconds", times.allocate_seconds},
      {"weights_seconds", times.weights.seconds},
      {"of_them_waiting_for_reads", times.weights.wait_seconds},
      {"streamed_bytes", static_cast<int64_t>(times.weights.streamed_bytes)},
      {"pinned_bytes", static_cast<int64_t>(times.weights.pinned_bytes)},
      {"staging_bytes", static_cast<int64_t>(times.weights.staging_bytes)},
      {"kv_cache_seconds", cache_seconds},
      {"scratch_seconds", scratch_seconds},
      {"graphs_seconds", graph_seconds});

  ModelInfo info;
  info.model_path = resolved.model_path;
  info.architecture = facts.architecture;
  info.model_type = facts.model_type;
  info.vocab_size = facts.vocab_size;
  info.context_length = facts.context_length;
  info.max_total_tokens = pages * resolved.page_size;
  info.weight_bytes = static_cast<int64_t>(model->parameters().size_bytes());
  info.linear_bytes = static_cast<int64_t>(model->parameters().linear_bytes());
  info.eos_token_ids = facts.eos_token_ids;
  info.quantization = facts.quantization;
  info.fp4_gemm_kernels = facts.fp4_gemm_kernels;
  info.moe_kernels = facts.moe_kernels;
  info.attention_kernels = facts.attention_kernels;
  info.step_kernel = facts.step_kernel;
  info.layer_table = facts.layer_table;
  const auto bytes = [](size_t size) { return static_cast<int64_t>(size); };
  info.memory = {{"weights", info.weight_bytes},
                 {"kv_cache", pool->size_bytes()},
                 {"decode_graphs", bytes(runner->graphs().memory_bytes())},
                 {"graph_inputs", bytes(runner->graphs().input_bytes())},
                 {"decode_step", bytes(runner->step_bytes())},
                 {"scratch", bytes(runner->scratch_bytes())},
                 {"batch_inputs", bytes(runner->input_bytes())},
                 {"logits_and_drawing", bytes(runner->output_bytes())},
                 {"pinned", bytes(runner->pinned_bytes()), true}};
  info.load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  LOG(info,
      "model loaded",
      {"path", info.model_path},
      {"architecture", info.architecture},
      {"quantization", info.quantization},
      {"fp4_gemm", info.fp4_gemm_kernels},
      {"moe", info.moe_kernels},
      {"attention", info.attention_kernels},
      {"seconds", info.load_seconds});
  if (resolved.device.kind == Device::Kind::Cuda) {
    LOG(info,
        "decode steps of one token",
        {"kernel", facts.step_kernel.empty() ? "one after another" : facts.step_kernel},
        {"why", facts.step_kernel.empty() ? facts.step_refusal : "first that takes the layers"});
  }
  for (const ModelInfo::Segment& segment : info.memory) {
    LOG(info,
        "memory",
        {"segment", segment.name},
        {"bytes", segment.size_bytes},
        {"where", segment.pinned ? "host, pinned" : to_string(resolved.device.kind)});
  }
  return std::make_unique<EngineImpl>(EngineImpl::Parts{resolved,
                                                        std::move(info),
                                                        std::move(stream),
                                                        std::move(model),
                                                        std::move(pool),
                                                        std::move(runner)});
}

Result<void> EngineImpl::validate(const Request& request) const {
  const ModelInfo& info = parts_.info;
  const auto known = [&info](int32_t id) { return id >= 0 && id < info.vocab_size; };
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) {
    return invalid("expected at least one token", "input_ids");
  }
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (!known(request.prompt[i])) {
      return invalid(fmt::format("token {} at position {} is out of the vocabulary of {}",
                                 request.prompt[i],
                                 i,
                                 info.vocab_size),
                     "input_ids");
    }
  }
  if (length >= info.context_length) {
    return invalid(fmt::format("the input of {} tokens is longer than the model's context length "
                               "of {} tokens allows",
                               length,
                               info.context_length),
                   "input_ids");
  }
  if (length >= info.max_total_tokens) {
    return invalid(fmt::format("the input of {} tokens does not fit the KV cache of {} tokens",
                               length,
                               info.max_total_tokens),
                   "input_ids");
  }
  const SamplingParams& s = request.sampling;
  if (s.max_new_tokens < 0 || length + s.max_new_tokens > info.context_length) {
    return invalid(fmt::format("requested token count exceeds the model's maximum context length "
                               "of {} tokens: {} in the input and {} to generate",
                               info.context_length,
                               length,
                               s.max_new_tokens),
                   "sampling_params.max_new_tokens");
  }
  TRY(in_range(s.min_new_tokens >= 0 && s.min_new_tokens <= s.max_new_tokens,
               "min_new_tokens",
               "0 to max_new_tokens",
               s.min_new_tokens));
  TRY(in_range(std::isfinite(s.temperature) && s.temperature >= 0,
               "temperature",
               "a finite number of at least 0",
               s.temperature));
  TRY(in_range(s.top_p > 0 && s.top_p <= 1, "top_p", "more than 0 and at most 1", s.top_p));
  TRY(in_range(s.top_k == -1 || s.top_k >= 1, "top_k", "-1 or at least 1", s.top_k));
  TRY(in_range(s.min_p >= 0 && s.min_p <= 1, "min_p", "0 to 1", s.min_p));
  TRY(in_range(
      std::abs(s.frequency_penalty) <= 2, "frequency_penalty", "-2 to 2", s.frequency_penalty));
  TRY(in_range(
      std::abs(s.presence_penalty) <= 2, "presence_penalty", "-2 to 2", s.presence_penalty));
  TRY(in_range(s.repetition_penalty > 0 && s.repetition_penalty <= 2,
               "repetition_penalty",
               "more than 0 and at most 2",
               s.repetition_penalty));
  for (const auto& [token, bias] : s.logit_bias) {
    if (!known(token) || !std::isfinite(bias)) {
      return invalid(fmt::format("token {} with bias {}: expected a token of the vocabulary of {} "
                                 "and a finite bias",
                                 token,
                                 format_number(static_cast<double>(bias)),
                                 info.vocab_size),
                     "sampling_params.logit_bias");
    }
  }
  for (const int32_t token : request.logprobs.token_ids) {
    if (!known(token)) {
      return invalid(
          fmt::format("token {} is out-of-vocabulary ({} tokens)", token, info.vocab_size),
          "token_ids_logprob");
    }
  }
  if (request.logprobs.top < 0 || request.logprobs.top > info.vocab_size) {
    return invalid(fmt::format("expected 0 to {}, found {}", info.vocab_size, request.logprobs.top),
                   "top_logprobs_num");
  }
  if (!request.sink) {
    return invalid("a request needs a sink", "sink");
  }
  return {};
}

}  // namespace nibble::engine
