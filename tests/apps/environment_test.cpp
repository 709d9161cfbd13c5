#include "apps/environment.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <CLI/CLI.hpp>
#include <gtest/gtest.h>

#include "apps/commands.h"
#include "apps/upstream_flags.h"

namespace nibble::apps {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

// Sets variables for one test.
class Environment {
 public:
  explicit Environment(Variables variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : variables_) {
      unsetenv(name.c_str());
    }
  }

 private:
  Variables variables_;
};

EnvironmentFlags read(std::vector<std::string> arguments) {
  CLI::App app;
  Action action;
  add_serve(app, action);
  return read_environment(app, arguments);
}

std::string read_docs() {
  const std::ifstream file(NIBBLE_ENVIRONMENT_DOCS);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Environment, BecomesFlagsOfTheChosenCommand) {
  const Environment set(Variables{{"NIBBLE_PORT", "8000"}, {"NIBBLE_FP4_GEMM_BACKEND", "cpu"}});
  auto found = read({"serve", "--port=1"});
  std::sort(found.arguments.begin(), found.arguments.end());
  EXPECT_EQ(found.arguments, (std::vector<std::string>{"--fp4-gemm-backend=cpu", "--port=8000"}));
  EXPECT_EQ(found.position, 1u);
  EXPECT_TRUE(found.notices.empty());
  EXPECT_TRUE(read({}).arguments.empty());
  EXPECT_TRUE(read({"other"}).arguments.empty());
}

TEST(Environment, ReachesTheCommandsInsideACommand) {
  const Environment set(Variables{{"NIBBLE_NVFP4_MODE", "w4a4"}, {"NIBBLE_REPEATS", "3"}});
  CLI::App app;
  Action action;
  add_bench(app, action);
  add_eval(app, action);
  const std::vector<std::string> latency{"bench", "latency", "--decode=4"};
  auto found = read_environment(app, latency);
  std::sort(found.arguments.begin(), found.arguments.end());
  EXPECT_EQ(found.arguments, (std::vector<std::string>{"--nvfp4-mode=w4a4", "--repeats=3"}));
  EXPECT_EQ(found.position, 2u);
  const std::vector<std::string> ppl{"eval", "ppl"};
  found = read_environment(app, ppl);
  EXPECT_EQ(found.arguments, (std::vector<std::string>{"--nvfp4-mode=w4a4"}));
  EXPECT_TRUE(found.notices.empty());  // another command has --repeats
}

TEST(Environment, TakesUpstreamsNamesWithANotice) {
  const Environment set(Variables{{"SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16", "TRUE"},
                                  {"SGLANG_FLASHINFER_FP4_GEMM_BACKEND", "cutlass"}});
  const auto found = read({"serve"});
  EXPECT_EQ(found.arguments,
            (std::vector<std::string>{"--nvfp4-mode=w4a16", "--fp4-gemm-backend=cutlass"}));
  EXPECT_EQ(found.notices.size(), 2u);
}

TEST(Environment, ReadsUpstreamsBooleansAndPassesOthersOnToBeRefused) {
  for (const auto& [value, flag] : std::vector<std::pair<std::string, std::string>>{
           {"1", "w4a16"}, {"yes", "w4a16"}, {"Y", "w4a16"}, {"2", "2"}, {"on", "on"}}) {
    const Environment set(Variables{{"SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16", value}});
    EXPECT_EQ(read({"serve"}).arguments, (std::vector<std::string>{"--nvfp4-mode=" + flag}));
  }
  for (const char* value : {"0", "false", "N", "no"}) {
    const Environment set(Variables{{"SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16", value}});
    EXPECT_TRUE(read({"serve"}).arguments.empty()) << value;
  }
}

TEST(Environment, TellsOfNamesThatNoCommandKnows) {
  const Environment set(Variables{{"NIBBLE_PROT", "8000"}});
  const auto found = read({"serve"});
  ASSERT_EQ(found.notices.size(), 1u);
  EXPECT_NE(found.notices[0].find("NIBBLE_PROT is ignored"), std::string::npos);
}

TEST(Environment, AWrongValueEndsTheProgramLikeAWrongFlag) {
  const Environment set(Variables{{"NIBBLE_PORT", "many"}});
  const char* const arguments[] = {"nibble", "serve", "--print-capabilities"};
  EXPECT_EQ(run_program(3, arguments), 2);
}

TEST(Environment, EveryNameFlagAndBackendIsInTheDocs) {
  const std::string docs = read_docs();
  const auto expect_listed = [&](std::string_view name) {
    EXPECT_NE(docs.find("`" + std::string(name) + "`"), std::string::npos) << name;
  };
  for (const EnvironmentAlias& alias : environment_aliases()) {
    expect_listed(alias.name);
    expect_listed(alias.flag);
  }
  for (const UpstreamBackend& backend : upstream_fp4_backends()) {
    expect_listed(backend.name);
  }
  for (const UpstreamBackend& backend : upstream_moe_runners()) {
    expect_listed(backend.name);
  }
  CLI::App app;
  Action action;
  add_serve(app, action);
  for (const CLI::Option* option : app.get_subcommand("serve")->get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (name != "help") {
        expect_listed("--" + name);
      }
    }
  }
  EXPECT_EQ(environment_name("--some-flag"), "NIBBLE_SOME_FLAG");
}

}  // namespace
}  // namespace nibble::apps
