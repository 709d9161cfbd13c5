// nibble serve: flags to one engine, one server, and the wait for a signal.
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/capabilities.h"
#include "apps/commands.h"
#include "apps/engine_flags.h"
#include "apps/load_text.h"
#include "apps/number_range.h"
#include "apps/upstream_flags.h"
#include "base/file.h"
#include "base/log.h"
#include "base/version.h"
#include "server/chat_message.h"
#include "server/checkpoint_watch.h"
#include "server/http/reserved_port.h"
#include "server/server.h"

namespace nibble::apps {

namespace {

constexpr double kMaxDrainSeconds = 1e9;  // in nanoseconds still an int64_t

struct ServeFlags {
  EngineFlags engine;
  std::string host = "127.0.0.1";
  int port = 30000;
  std::string served_model_name;
  std::string chat_template;
  std::string sampling_defaults = "model";
  bool skip_tokenizer_init = false;
  std::string api_key;
  std::string admin_api_key;
  std::string weight_version;
  int64_t max_staging_mib = -1;
  std::string watch;
  double watch_seconds = 1;
  std::string watch_running = "wait";
  std::string random_seed;
  std::string reasoning_parser;
  std::string tool_call_parser;
  bool deterministic = false;
  bool incremental_streaming = false;
  int64_t stream_interval = 1;
  bool print_capabilities = false;
  int64_t max_body_mib = 64;
  int64_t max_inflight_body_mib = 512;
  double drain_seconds = 30;
  std::vector<GivenFlag> upstream;
};

void add_flags(CLI::App& command, ServeFlags& flags) {
  const auto server = [](CLI::Option* option) { return option->group("Server"); };
  server(command.add_option("--host", flags.host, "address to listen on")->capture_default_str());
  server(command.add_option("--port", flags.port, "port to listen on; 0: any free one")
             ->check(CLI::Range(0, 65535))
             ->capture_default_str());
  server(command.add_option(
      "--served-model-name", flags.served_model_name, "name in /v1/models; default: the path"));
  server(command.add_option("--api-key", flags.api_key, "clients must send it as a bearer token"));
  server(command.add_option("--admin-api-key", flags.admin_api_key, "for the weight routes"));
  server(command.add_option("--max-body-mib", flags.max_body_mib, "longest request body")
             ->check(CLI::Range(1, 1024))
             ->capture_default_str());
  server(command
             .add_option("--max-inflight-body-mib",
                         flags.max_inflight_body_mib,
                         "bodies of all requests together; beyond it they get 503")
             ->check(CLI::Range(1, 1 << 20))
             ->capture_default_str());
  server(command
             .add_option("--drain-seconds",
                         flags.drain_seconds,
                         "how long SIGTERM lets running requests go on")
             ->check(number_range(0, kMaxDrainSeconds))
             ->capture_default_str());
  server(command.add_flag("--print-capabilities",
                          flags.print_capabilities,
                          "what this machine and build offer, then exit"));
  const auto text = [](CLI::Option* option) { return option->group("Text"); };
  text(command.add_option("--chat-template", flags.chat_template, "a .jinja file"));
  text(command.add_flag(
      "--skip-tokenizer-init", flags.skip_tokenizer_init, "token ids in, token ids out"));
  text(command
           .add_option("--sampling-defaults",
                       flags.sampling_defaults,
                       "chat defaults: model (generation_config.json) or openai")
           ->check(CLI::IsMember({"model", "openai"}))
           ->capture_default_str());
  text(command.add_option("--reasoning-parser",
                          flags.reasoning_parser,
                          "takes reasoning out of chat answers, by upstream's names"));
  text(command.add_option("--tool-call-parser",
                          flags.tool_call_parser,
                          "finds tool calls in chat answers, by upstream's names"));
  text(command.add_option("--random-seed", flags.random_seed, "where random seeds start"));
  text(command.add_flag("--enable-deterministic-inference",
                        flags.deterministic,
                        "requests without a seed get 42; answers are batch-invariant anyway"));
  text(command
           .add_option("--stream-interval", flags.stream_interval, "tokens between stream events")
           ->check(CLI::PositiveNumber)
           ->capture_default_str());
  text(command.add_flag("--incremental-streaming-output",
                        flags.incremental_streaming,
                        "/generate streams deltas, not the whole text so far"));
  const auto model = [](CLI::Option* option) { return option->group("Model"); };
  model(command.add_option("--weight-version", flags.weight_version, "reported with every answer"));
  model(command
            .add_option("--max-staging-mib",
                        flags.max_staging_mib,
                        "spare memory that a weight update may take; default: what is free")
            ->check(CLI::Range(int64_t{0}, int64_t{1} << 40)));
  model(command.add_option(
      "--watch", flags.watch, "load checkpoints that appear below this directory (manifest last)"));
  model(command.add_option("--watch-seconds", flags.watch_seconds, "how often to look there")
            ->check(number_range(0.01, 3600))
            ->capture_default_str());
  model(command
            .add_option("--watch-running",
                        flags.watch_running,
                        "what such an update does to running requests: wait, abort or swap")
            ->capture_default_str());
  add_engine_flags(command, flags.engine);
  add_upstream_flags(command, flags.upstream);
}

// Every resolved setting by upstream's field name.
boost::json::object server_args(const ServeFlags& flags, const engine::EngineConfig& config) {
  return {{"host", flags.host},
          {"port", flags.port},
          {"tokenizer_path", flags.engine.tokenizer_path},
          {"context_length", config.context_length},
          {"device", std::string(to_string(config.device.kind))},
          {"num_threads", config.num_threads},
          {"cpu_isa", to_string(config.cpu_isa)},
          {"nvfp4_mode", to_string(config.nvfp4_mode)},
          {"fp4_gemm_runner_backend", config.fp4_gemm_backend},
          {"moe_runner_backend", config.moe_runner_backend},
          {"moe_a2a_backend", flags.engine.moe_a2a_backend},
          {"attention_backend", config.attention_backend},
          {"cuda_step", flags.engine.cuda_step},
          {"max_running_requests", config.max_running_requests},
          {"max_queued_requests", config.max_queued_requests},
          {"chunked_prefill_size", config.chunked_prefill_size},
          {"max_prefill_tokens", config.chunked_prefill_size},
          {"page_size", config.page_size},
          {"kv_cache_dtype", config.kv_dtype == DType::E4M3 ? "fp8_e4m3" : "bfloat16"},
          {"disable_radix_cache", !config.prefix_cache},
          {"disable_cuda_graph", !config.decode_graphs},
          {"disable_overlap_schedule", !config.overlap},
          {"reuse_generated_kv", config.reuse_generated_kv},
          {"stream_interval", flags.stream_interval},
          {"reasoning_parser", flags.reasoning_parser},
          {"tool_call_parser", flags.tool_call_parser},
          {"skip_tokenizer_init", flags.skip_tokenizer_init},
          {"enable_deterministic_inference", flags.deterministic},
          {"tp_size", 1},
          {"dp_size", 1},
          {"ep_size", 1},
          {"load_balance_method", "round_robin"},
          {"disaggregation_mode", "null"}};
}

Result<server::ServerConfig> make_server_config(const ServeFlags& flags,
                                                const engine::EngineConfig& engine) {
  server::ServerConfig config;
  config.http.host = flags.host;
  config.http.port = static_cast<uint16_t>(flags.port);
  config.http.max_body_bytes = static_cast<size_t>(flags.max_body_mib) << 20;
  config.http.max_inflight_body_bytes = static_cast<size_t>(flags.max_inflight_body_mib) << 20;
  config.http.server_name = std::string("nibble/") + kVersion;
  config.served_model_name = flags.served_model_name;
  config.tokenizer_path = flags.engine.tokenizer_path;
  config.api_key = flags.api_key;
  config.admin_api_key = flags.admin_api_key;
  TRY(server::check_parser_names(flags.reasoning_parser, flags.tool_call_parser));
  config.reasoning_parser = flags.reasoning_parser;
  config.tool_call_parser = flags.tool_call_parser;
  config.deterministic_seeds = flags.deterministic;
  config.incremental_streaming = flags.incremental_streaming;
  config.stream_interval = flags.stream_interval;
  config.drain_timeout_seconds = flags.drain_seconds;
  config.server_args = server_args(flags, engine);
  if (!flags.random_seed.empty()) {
    uint64_t seed = 0;
    const char* end = flags.random_seed.data() + flags.random_seed.size();
    const auto [stop, code] = std::from_chars(flags.random_seed.data(), end, seed);
    if (code != std::errc{} || stop != end) {
      return invalid("expected a whole number, found '" + flags.random_seed + "'", "--random-seed");
    }
    config.random_seed = seed;
  }
  if (flags.sampling_defaults == "model") {
    config.sampling_defaults = TRY(load_sampling_defaults(engine.model_path));
  }
  return config;
}

// Blocked before any thread starts, so that only those who wait for them see them.
sigset_t block_stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

// While the model loads there is nothing to finish, and a load can take minutes: the first signal
// ends the process.
std::jthread leave_while_loading(const sigset_t& signals) {
  return std::jthread([signals](const std::stop_token& loaded) {
    while (!loaded.stop_requested()) {
      const timespec period{0, 20'000'000};
      const int signal = sigtimedwait(&signals, nullptr, &period);
      if (signal > 0) {
        LOG(info, "stopped before the model was loaded", {"signal", signal});
        std::_Exit(0);
      }
    }
  });
}

// False: the engine failed.
bool wait_for_stop(const sigset_t& signals, const engine::Engine& engine) {
  for (;;) {
    const timespec period{0, 200'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &period);
    if (signal > 0) {
      LOG(info, "stopping", {"signal", signal});
      return true;
    }
    if (!engine.healthy()) {
      LOG(error, "the engine failed; leaving so that a supervisor can restart");
      return false;
    }
  }
}

void log_start(const ServeFlags& flags,
               const engine::Engine& engine,
               const server::Server& server) {
  const engine::ModelInfo& model = engine.info();
  LOG(info,
      "model",
      {"path", model.model_path},
      {"architecture", model.architecture},
      {"quantization", model.quantization},
      {"weight_mib", model.weight_bytes >> 20},
      {"load_seconds", model.load_seconds},
      {"context_length", model.context_length},
      {"kv_tokens", model.max_total_tokens});
  LOG(info,
      "listening",
      {"address", fmt::format("http://{}:{}", server::http::url_host(flags.host), server.port())});
  LOG(info, "The server is fired up and ready to roll!");  // launch scripts wait for this line
}

Result<std::optional<server::WatchConfig>> watch_config(const ServeFlags& flags) {
  if (flags.watch.empty()) {
    return std::nullopt;
  }
  if (!directory_exists(flags.watch)) {
    return fail(ErrorCode::NotFound, "no such directory: " + flags.watch, "--watch");
  }
  server::WatchConfig config;
  config.directory = flags.watch;
  config.period_seconds = flags.watch_seconds;
  config.running = TRY(engine::parse_running_policy(flags.watch_running).map_error([](Error error) {
    error.where = "--watch-running";
    return error;
  }));
  return std::optional(std::move(config));
}

Result<int> serve(ServeFlags flags) {
  if (flags.print_capabilities) {
    fmt::print("{}", describe_capabilities());
    return 0;
  }
  const auto notices = TRY(check_upstream_flags(flags.upstream));
  engine::EngineConfig config = TRY(resolve_engine_config(flags.engine));
  config.max_staging_bytes = flags.max_staging_mib < 0 ? -1 : flags.max_staging_mib << 20;
  for (const std::string& notice : notices) {
    LOG(info, "notice", {"flag", notice});
  }
  if (flags.engine.tokenizer_path.empty()) {
    flags.engine.tokenizer_path = config.model_path;
  }
  std::optional<server::WatchConfig> watched = TRY(watch_config(flags));
  const sigset_t signals = block_stop_signals();
  server::ServerConfig server_config = TRY(make_server_config(flags, config));
  // Before the load: a busy port must not cost a minute of it.
  auto port = TRY(server::http::ReservedPort::bind(flags.host, server_config.http.port));
  std::unique_ptr<server::TextModel> text;
  if (!flags.skip_tokenizer_init) {
    text = std::make_unique<server::TextModel>(
        TRY(load_text_model(flags.engine.tokenizer_path, flags.chat_template)));
  }
  LOG(info,
      "starting",
      {"version", kVersion},
      {"cpu_isa", to_string(config.cpu_isa)},
      {"device", to_string(config.device.kind)},
      {"settings", boost::json::serialize(server_config.server_args)});
  std::jthread leaving = leave_while_loading(signals);
  const std::unique_ptr<engine::Engine> engine = TRY(engine::Engine::create(config));
  if (!flags.weight_version.empty()) {
    TRY(engine->set_weight_version(flags.weight_version));
  }
  std::optional<server::CheckpointWatch> watch;  // joined after the server has let go of requests
  const auto server =
      TRY(server::Server::start(std::move(server_config), *engine, text.get(), std::move(port)));
  leaving.request_stop();
  leaving.join();
  log_start(flags, *engine, *server);
  if (watched) {
    watch.emplace(std::move(*watched), *engine);
  }
  const bool asked = wait_for_stop(signals, *engine);
  if (watch) {
    watch->stop();
  }
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // a second signal ends the process at once
  if (asked) {
    server->drain(flags.drain_seconds);
  }
  server->stop();
  return asked ? 0 : 1;
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("serve", "OpenAI and SGLang compatible HTTP server");
  auto flags = std::make_shared<ServeFlags>();  // shared: the action outlives this function
  add_flags(*command, *flags);
  command->footer(
      "examples:\n"
      "  nibble serve --model-path ./model-nvfp4\n"
      "  nibble serve --model-path ./model --host 0.0.0.0 --port 8000 --api-key secret\n"
      "  curl http://127.0.0.1:30000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n\n"
      "Flags of SGLang that mean nothing here are accepted with a notice; unknown ones are "
      "refused.");
  command->callback([flags, &action] {
    action = [flags] {
      const auto code = serve(*flags);
      return code ? *code : report_error(code.error());
    };
  });
}

}  // namespace nibble::apps
