#include <cstdint>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/commands.h"
#include "apps/engine_flags.h"

namespace nibble::apps {

namespace {

struct ServeFlags {
  EngineFlags engine;
  std::string host = "127.0.0.1";
  uint16_t port = 30000;
};

int run_serve(const ServeFlags& flags) {
  const auto config = resolve_engine_config(flags.engine);
  if (!config) {
    return report_error(config.error());
  }
  return report_error({ErrorCode::Unsupported, "the server is not part of this build yet", {}});
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("serve", "OpenAI and SGLang compatible HTTP server");
  auto flags = std::make_shared<ServeFlags>();  // shared: the action outlives this function
  command->add_option("--host", flags->host, "address to listen on")->capture_default_str();
  command->add_option("--port", flags->port, "port to listen on; 0: any free one")
      ->capture_default_str();
  add_engine_flags(*command, flags->engine);
  command->callback([flags, &action] { action = [flags] { return run_serve(*flags); }; });
}

}  // namespace nibble::apps
