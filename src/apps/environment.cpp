#include "apps/environment.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include <CLI/CLI.hpp>
#include <unistd.h>

namespace nibble::apps {

namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return out;
}

// Upstream's booleans: true/1/yes/y and false/0/no/n in any case.
std::string w4a16_mode(std::string_view value) {
  const std::string word = lower(value);
  if (word == "1" || word == "true" || word == "yes" || word == "y") {
    return "w4a16";
  }
  if (word.empty() || word == "0" || word == "false" || word == "no" || word == "n") {
    return "";
  }
  return std::string(value);
}

constexpr EnvironmentAlias kAliases[] = {
    {"SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16",
     "--nvfp4-mode",
     w4a16_mode,
     "1: --nvfp4-mode w4a16; 0 or unset: auto"},
    {"SGLANG_FLASHINFER_FP4_GEMM_BACKEND",
     "--fp4-gemm-backend",
     nullptr,
     "as the flag, with or without the flashinfer_ prefix"},
};

std::vector<const CLI::App*> all_commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

const CLI::App* find_command(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : all_commands(app)) {
    if (command->get_name() == name) {
      return command;
    }
  }
  return nullptr;
}

bool any_command_has(const CLI::App& app, const std::string& flag) {
  const auto commands = all_commands(app);
  return std::any_of(commands.begin(), commands.end(), [&](const CLI::App* command) {
    return command->get_option_no_throw(flag) != nullptr || any_command_has(*command, flag);
  });
}

std::string flag_name(std::string_view variable) {
  std::string flag = "--" + lower(variable.substr(std::string_view("NIBBLE_").size()));
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

}  // namespace

std::span<const EnvironmentAlias> environment_aliases() { return kAliases; }

std::string environment_name(std::string_view flag) {
  std::string name = "NIBBLE_";
  for (const char c : flag.substr(flag.find_first_not_of('-'))) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

EnvironmentFlags read_environment(const CLI::App& app, std::span<const std::string> arguments) {
  EnvironmentFlags found;
  const auto chosen = std::find_if(arguments.begin(), arguments.end(), [](const auto& argument) {
    return !argument.starts_with('-');
  });
  const CLI::App* command = chosen == arguments.end() ? nullptr : find_command(app, *chosen);
  if (command == nullptr) {
    return found;
  }
  found.position = static_cast<size_t>(chosen - arguments.begin()) + 1;
  while (found.position < arguments.size()) {  // "eval ppl"
    const CLI::App* sub = find_command(*command, arguments[found.position]);
    if (sub == nullptr) {
      break;
    }
    command = sub;
    ++found.position;
  }
  for (const EnvironmentAlias& alias : kAliases) {  // first, so that NIBBLE_* wins
    const char* value = std::getenv(std::string(alias.name).c_str());
    if (value == nullptr || command->get_option_no_throw(std::string(alias.flag)) == nullptr) {
      continue;
    }
    const std::string translated = alias.translate ? alias.translate(value) : std::string(value);
    if (!translated.empty()) {
      found.arguments.push_back(std::string(alias.flag) + "=" + translated);
      found.notices.push_back(std::string(alias.name) + "=" + value + " is read as " +
                              found.arguments.back());
    }
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (!text.starts_with("NIBBLE_") || equals == std::string_view::npos) {
      continue;
    }
    const std::string flag = flag_name(text.substr(0, equals));
    if (command->get_option_no_throw(flag) != nullptr) {
      found.arguments.push_back(flag + "=" + std::string(text.substr(equals + 1)));
    } else if (!any_command_has(app, flag)) {
      found.notices.push_back(std::string(text.substr(0, equals)) +
                              " is ignored: no command has a flag " + flag);
    }
  }
  return found;
}

}  // namespace nibble::apps
