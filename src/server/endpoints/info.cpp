// What runs here: /model_info, /server_info, /v1/loads and the page at /.
#include <chrono>
#include <ctime>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/version.h"
#include "server/endpoints/endpoints.h"

namespace nibble::server {

namespace json = boost::json;

namespace {

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
                     parts.tm_year + 1900,
                     parts.tm_mon + 1,
                     parts.tm_mday,
                     parts.tm_hour,
                     parts.tm_min,
                     parts.tm_sec);
}

// Staging goes on beside serving or a pause.
std::string_view state_name(const engine::WeightsInfo& weights) {
  return weights.staging && weights.state == engine::EngineState::Serving
             ? "staging"
             : to_string(weights.state);
}

json::array strings(const std::vector<std::string>& lines) {
  json::array out;
  for (const std::string& line : lines) {
    out.push_back(json::value(line));
  }
  return out;
}

json::object load_json(const ServerContext& context) {
  const engine::Load load = context.engine.load();
  const auto used = static_cast<double>(load.used_tokens);
  const auto total = static_cast<double>(std::max<int64_t>(1, load.max_total_tokens));
  return {{"dp_rank", 0},
          {"timestamp", utc_now()},
          {"num_running_reqs", load.running},
          {"num_waiting_reqs", load.waiting},
          {"num_waiting_uncached_tokens", 0},
          {"num_used_tokens", load.used_tokens},
          {"num_total_tokens", load.used_tokens},
          {"max_total_num_tokens", load.max_total_tokens},
          {"token_usage", used / total},
          {"gen_throughput", load.last_decode_tokens_per_second},
          {"cache_hit_rate", 0.0},
          {"utilization", used / total}};
}

// The sections upstream knows; only core has content here.
Result<void> check_include(const http::Request& request) {
  constexpr std::string_view kSections[] = {
      "core", "memory", "spec", "lora", "disagg", "queues", "all"};
  const std::string include = request.query_value("include").value_or("all");
  std::string_view rest = include;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view section = rest.substr(0, comma);
    if (std::find(std::begin(kSections), std::end(kSections), section) == std::end(kSections)) {
      return invalid("expected core, memory, spec, lora, disagg, queues or all, found '" +
                         std::string(section) + "'",
                     "include");
    }
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return {};
}

}  // namespace

Result<void> handle_model_info(Call& call) {
  const ServerContext& context = call.context;
  const engine::ModelInfo& model = context.engine.info();
  json::array architectures;
  architectures.push_back(json::value(model.architecture));
  respond_json(call,
               json::object{{"model_path", context.model_path()},
                            {"tokenizer_path", context.config.tokenizer_path},
                            {"is_generation", true},
                            {"preferred_sampling_params", nullptr},
                            {"weight_version", context.engine.weights().weight_version},
                            {"has_image_understanding", false},
                            {"has_audio_understanding", false},
                            {"model_type", model.model_type},
                            {"architectures", std::move(architectures)}});
  return {};
}

Result<void> handle_server_info(Call& call) {
  const ServerContext& context = call.context;
  const engine::ModelInfo& model = context.engine.info();
  json::object state = context.config.server_args;
  state["last_gen_throughput"] = context.engine.load().last_decode_tokens_per_second;
  json::object memory;
  for (const engine::ModelInfo::Segment& segment : model.memory) {
    memory[segment.name] = segment.size_bytes;
  }
  const auto gib_of = [&model](std::string_view name) {
    double gib = 0;
    for (const engine::ModelInfo::Segment& segment : model.memory) {
      gib += segment.name == name ? static_cast<double>(segment.size_bytes) : 0.0;
    }
    return gib / static_cast<double>(int64_t{1} << 30);
  };
  state["memory_usage"] = json::object{{"weight", gib_of("weights")},
                                       {"kvcache", gib_of("kv_cache")},
                                       {"graph", gib_of("decode_graphs")},
                                       {"token_capacity", model.max_total_tokens}};
  json::object info = context.config.server_args;
  info["memory_bytes"] = std::move(memory);
  info["model_path"] = context.model_path();
  info["served_model_name"] = context.served_model_name();
  info["status"] = "ready";
  const engine::WeightsInfo weights = context.engine.weights();
  json::array released;
  for (const engine::MemoryTag tag : weights.released) {
    released.push_back(json::value(to_string(tag)));
  }
  info["weight_state"] = state_name(weights);
  info["weight_staging"] = weights.staging;
  info["weight_version"] = weights.weight_version;
  info["weight_updates"] = weights.num_updates;
  info["released"] = std::move(released);
  info["version"] = kVersion;
  info["git_description"] = kGitDescription;
  info["max_total_num_tokens"] = model.max_total_tokens;
  info["max_req_input_len"] = std::min(model.context_length, model.max_total_tokens) - 1;
  info["quantization_resolved"] = model.quantization;
  const auto name_or_null = [](const std::string& name) {
    return name.empty() ? json::value(nullptr) : json::value(name);
  };
  info["resolved_backends"] = json::object{{"fp4_gemm", name_or_null(model.fp4_gemm_kernels)},
                                           {"moe_runner", name_or_null(model.moe_kernels)},
                                           {"attention", name_or_null(model.attention_kernels)},
                                           {"decode_step", name_or_null(model.step_kernel)}};
  info["layers"] = strings(model.layer_table);
  info["kv_events"] = nullptr;
  json::array states;
  states.push_back(std::move(state));
  info["internal_states"] = std::move(states);
  respond_json(call, info);
  return {};
}

Result<void> handle_loads(Call& call) {
  const http::Request& request = call.request();
  TRY(check_include(request));
  const std::string dp_rank = request.query_value("dp_rank").value_or("0");
  json::object load = load_json(call.context);
  if (request.query_value("format").value_or("json") == "prometheus") {
    std::string text;
    for (const auto& field : load) {
      if (field.value().is_number() && field.key() != "dp_rank") {
        text += fmt::format("sglang_{}{{dp_rank=\"0\"}} {}\n",
                            std::string_view(field.key()),
                            format_number(field.value().to_number<double>()));
      }
    }
    respond_text(call, std::move(text));
    return {};
  }
  json::array loads;
  if (dp_rank == "0") {
    loads.push_back(load);
  }
  respond_json(call,
               json::object{{"timestamp", utc_now()},
                            {"version", kVersion},
                            {"loads", std::move(loads)},
                            {"aggregate", {{"total_tokens", load.at("num_used_tokens")}}}});
  return {};
}

Result<void> handle_metrics(Call& call) {
  call.exchange->respond({200,
                          "text/plain; version=0.0.4; charset=utf-8",
                          call.context.metrics.render(call.context.engine.load()),
                          {}});
  return {};
}

Result<void> handle_page(Call& call) {
  const engine::ModelInfo& model = call.context.engine.info();
  const engine::Load load = call.context.engine.load();
  // Names are escaped: a served model name is free text.
  const auto escaped = [](std::string_view text) {
    std::string out;
    for (const char c : text) {
      if (c == '<') {
        out += "&lt;";
      } else if (c == '&') {
        out += "&amp;";
      } else {
        out += c;
      }
    }
    return out;
  };
  const std::string body = fmt::format(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>nibble</title></head>"
      "<body><h1>nibble {}</h1><p>{} ({}, {}) is served at <code>/v1/chat/completions</code>, "
      "<code>/v1/completions</code> and <code>/generate</code>.</p>"
      "<p>{} running, {} waiting, {} of {} tokens used.</p>"
      "<p><a href=\"/v1/models\">models</a> <a href=\"/server_info\">server info</a> "
      "<a href=\"/v1/loads\">load</a></p></body></html>\n",
      kVersion,
      escaped(call.context.served_model_name()),
      escaped(model.architecture),
      escaped(model.quantization),
      load.running,
      load.waiting,
      load.used_tokens,
      load.max_total_tokens);
  call.exchange->respond({200, "text/html; charset=utf-8", body, {}});
  return {};
}

}  // namespace nibble::server
