// The only place that reads environment variables. Each becomes a flag placed before the ones the
// user typed, so it is validated like a flag and a typed flag wins:
//
//   NIBBLE_SOME_FLAG=value      --some-flag=value of the chosen command, for every flag
//   upstream's names            see kAliases in environment.cpp and docs/environment.md
//
// Names starting with NIBBLE_ that no command knows are refused with a notice.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace nibble::apps {

struct EnvironmentFlags {
  std::vector<std::string> arguments;  // "--flag=value"
  size_t position = 0;                 // where in the argument list they belong
  std::vector<std::string> notices;    // one line each, for people
};

EnvironmentFlags read_environment(const CLI::App& app, std::span<const std::string> arguments);

// "--some-flag" -> "NIBBLE_SOME_FLAG".
std::string environment_name(std::string_view flag);

// An upstream variable and the flag it stands for.
struct EnvironmentAlias {
  std::string_view name;
  std::string_view flag;
  // Value to flag value; nullptr: as it is. Returns "" when the variable asks for the default, and
  // the value itself when it is unknown, so that the flag's own check refuses it.
  std::string (*translate)(std::string_view value);
  std::string_view meaning;
};
std::span<const EnvironmentAlias> environment_aliases();

}  // namespace nibble::apps
