#include "apps/commands.h"

#include <array>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/environment.h"
#include "base/cpu_info.h"
#include "base/log.h"
#include "base/version.h"

namespace nibble::apps {

namespace {

// One command a line, in the order of --help.
constexpr std::array kCommands = {
    AddCommand{add_serve},
    AddCommand{add_generate},
    AddCommand{add_chat},
    AddCommand{add_quantize},
    AddCommand{add_inspect},
    AddCommand{add_bench},
    AddCommand{add_eval},
};

constexpr const char* kExamples = R"(examples:
  nibble inspect ./model                      what is in a checkpoint, and is it servable
  nibble quantize ./model ./model-nvfp4       make an NVFP4 checkpoint from a BF16 one
  nibble serve --model-path ./model-nvfp4     HTTP server on 127.0.0.1:30000
  nibble generate --model-path ./model-nvfp4 "The capital of France is"

`nibble COMMAND --help` explains one command. Every flag --some-flag can also be given as the
environment variable NIBBLE_SOME_FLAG; the flag wins.)";

std::string version_text() {
  return fmt::format("nibble {} ({})\nbuilt with {}, CUDA backends: {}\nCPU: {}, level {}",
                     kVersion,
                     kGitDescription,
                     kCompiler,
                     kCudaBuild ? "yes" : "no",
                     cpu_model_name(),
                     to_string(detect_cpu_isa()));
}

}  // namespace

std::span<const AddCommand> commands() { return kCommands; }

int report_error(const Error& error) {
  fmt::print(stderr, "nibble: error: {}\n", error.text());
  return 1;
}

int run_program(int argc, const char* const* argv) {
  CLI::App app{"nibble serves, makes and examines NVFP4 language-model checkpoints", "nibble"};
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("--version", version_text, "print version and build facts");
  app.footer(kExamples);
  app.require_subcommand(0, 1);

  Action action;
  for (const AddCommand add : kCommands) {
    add(app, action);
  }

  std::vector<std::string> arguments(argv + 1, argv + argc);
  const EnvironmentFlags environment = read_environment(app, arguments);
  for (const std::string& notice : environment.notices) {
    fmt::print(stderr, "nibble: notice: {}\n", notice);
  }
  arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(environment.position),
                   environment.arguments.begin(),
                   environment.arguments.end());
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    if (code != 0 && !environment.arguments.empty()) {
      fmt::print(stderr, "taken from the environment: {}\n", fmt::join(environment.arguments, " "));
    }
    return code == 0 ? 0 : 2;
  }
  if (!action) {
    fmt::print("{}", app.help());
    return arguments.empty() ? 2 : 0;
  }
  try {
    return action();
  } catch (const std::exception& error) {  // the environment failed while starting
    return report_error({ErrorCode::Internal, error.what(), {}});
  }
}

}  // namespace nibble::apps
