// The list of subcommands. A command is one file: it adds its flags to the app and, when the user
// chose it, leaves what to do in `action`; main runs that after parsing. To add a command: one
// add_x() here, one line in commands.cpp, one file.
#pragma once

#include <functional>
#include <span>

#include "base/error.h"

namespace CLI {
class App;
}

namespace nibble::apps {

using Action = std::function<int()>;  // returns the exit code
using AddCommand = void (*)(CLI::App& app, Action& action);

std::span<const AddCommand> commands();  // in the order of --help

void add_serve(CLI::App& app, Action& action);
void add_chat(CLI::App& app, Action& action);
void add_quantize(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_eval(CLI::App& app, Action& action);

// Prints "nibble: error: ..." to stderr and returns the exit code of a failed command.
int report_error(const Error& error);

// The whole program, without the process around it (tests call it): parses, runs, returns the exit
// code. argv[0] is the program's name.
int run_program(int argc, const char* const* argv);

}  // namespace nibble::apps
