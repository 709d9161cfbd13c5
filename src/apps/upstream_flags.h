// Upstream's (SGLang's) names: flags that mean nothing here yet are accepted with a notice or,
// where the value asks for something that this server cannot do, refused with words; backend names
// are mapped to what nibble has. Tables, so that documentation and tests can walk them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace CLI {
class App;
}

namespace nibble::apps {

struct UpstreamFlag {
  std::string_view names;  // as CLI11 takes them: "--tp-size,--tp"
  bool takes_value;
  std::string_view allowed;  // values that change nothing here, space-separated; empty: any
  std::string_view notice;   // what nibble does instead
};
std::span<const UpstreamFlag> upstream_flags();

struct GivenFlag {
  const UpstreamFlag* flag;
  std::string value;
};

// Adds all of them to a command, in a group that --help does not show. `given` must outlive it.
void add_upstream_flags(CLI::App& command, std::vector<GivenFlag>& given);

// One line a flag; an error when a value asks for what cannot be done.
Result<std::vector<std::string>> check_upstream_flags(std::span<const GivenFlag> given);

// ---- backends ----

struct UpstreamBackend {
  std::string_view name;
  std::string_view backend;     // the backend of that flag it becomes; empty: refused
  std::string_view nvfp4_mode;  // the --nvfp4-mode it implies where that is auto; empty: none
  std::string_view reason;
};
std::span<const UpstreamBackend> upstream_fp4_backends();
std::span<const UpstreamBackend> upstream_moe_runners();

struct BackendChoice {
  std::string fp4_gemm_backend = "auto";
  std::string moe_runner_backend = "auto";
  std::string nvfp4_mode = "auto";
  std::vector<std::string> notices;
};
// From the flags as given. Names that are not upstream's go through unchanged.
Result<BackendChoice> resolve_backends(const std::string& fp4_gemm_backend,
                                       const std::string& nvfp4_mode,
                                       const std::string& moe_runner_backend,
                                       const std::string& moe_a2a_backend);

}  // namespace nibble::apps
