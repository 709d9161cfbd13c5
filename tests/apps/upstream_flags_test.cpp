#include "apps/upstream_flags.h"

#include <CLI/CLI.hpp>
#include <gtest/gtest.h>

#include "apps/commands.h"

namespace nibble::apps {
namespace {

// Every row of the table: accepted with a notice that says what happens instead; a value outside
// its list is refused and says what is accepted.
TEST(UpstreamFlags, EveryRowIsAcceptedWithANoticeAndChecksItsValue) {
  for (const UpstreamFlag& flag : upstream_flags()) {
    const std::string names(flag.names);
    for (size_t begin = 0; begin < names.size();) {
      const size_t end = std::min(names.find(',', begin), names.size());
      const std::string name = names.substr(begin, end - begin);
      begin = end + 1;
      CLI::App app;
      std::vector<GivenFlag> given;
      add_upstream_flags(app, given);
      std::vector<std::string> arguments;
      if (flag.takes_value) {
        arguments.push_back(flag.allowed.empty()
                                ? "anything"
                                : std::string(flag.allowed.substr(0, flag.allowed.find(' '))));
      }
      arguments.push_back(name);  // CLI11 takes them in reverse
      app.parse(std::move(arguments));
      ASSERT_EQ(given.size(), 1u) << name;
      const auto notices = check_upstream_flags(given);
      ASSERT_TRUE(notices) << notices.error().text();
      EXPECT_NE(notices->at(0).find(flag.notice), std::string::npos) << name;
      if (!flag.allowed.empty()) {
        given[0].value = "surely-not";
        const auto refused = check_upstream_flags(given);
        ASSERT_FALSE(refused) << name;
        EXPECT_NE(refused.error().message.find(flag.allowed), std::string::npos) << name;
      }
    }
  }
}

struct Row {
  const char* fp4;
  const char* mode;
  const char* runner;
  const char* a2a;
  const char* backend;      // expected; nullptr: refused
  const char* mode_or_why;  // expected mode, or part of the refusal
};

// Upstream's truth table of flags, as it reads here: the kernel is nibble's own for the device, so
// only the mode and what cannot be done at all matter.
TEST(Backends, FollowTheTableOfCombinations) {
  const Row rows[] = {
      {"auto", "auto", "auto", "none", "auto", "auto"},
      {"flashinfer_cutedsl", "auto", "auto", "none", "auto", "auto"},
      {"flashinfer_cutedsl", "w4a16", "flashinfer_cutedsl", "none", "auto", "w4a16"},
      {"auto", "w4a16", "flashinfer_cutedsl", "none", "auto", "w4a16"},
      {"flashinfer_cutedsl", "w4a16", "flashinfer_trtllm", "none", "auto", "w4a16"},
      {"flashinfer_cutlass", "w4a16", "flashinfer_cutedsl", "none", "auto", "w4a16"},
      {"flashinfer_cudnn", "w4a4", "auto", "none", "auto", "w4a4"},
      {"trtllm", "auto", "flashinfer_trtllm_routed", "none", "auto", "auto"},
      {"marlin", "auto", "marlin", "none", "auto", "w4a16"},
      {"marlin", "w4a16", "auto", "none", "auto", "w4a16"},
      {"marlin", "w4a4", "auto", "none", nullptr, "means weight-only FP4, --nvfp4-mode says w4a4"},
      {"aiter", "auto", "auto", "none", nullptr, "only supported on ROCm"},
      {"triton", "auto", "auto", "none", nullptr, "only supported on ROCm"},
      {"auto", "auto", "cutlass", "none", nullptr, "has no NVFP4 kernels"},
      {"auto", "auto", "deep_gemm", "none", nullptr, "has no NVFP4 kernels"},
      {"auto", "auto", "flashinfer_mxfp4", "none", nullptr, "is for MXFP4 checkpoints"},
      {"auto", "auto", "marlin", "none", "auto", "w4a16"},
      {"auto", "w4a4", "experimental_sgl_marlin", "none", nullptr, "means weight-only FP4"},
      {"auto", "w4a4", "nvfp4_grouped_w4a4_avx2", "none", "auto", "w4a4"},
      {"auto", "w4a16", "flashinfer_cutedsl", "deepep", nullptr, "several devices"},
      {"auto", "w4a16", "flashinfer_cutedsl", "flashinfer", nullptr, "several devices"},
      {"auto", "auto", "auto", "pplx", nullptr, "several devices"},
      {"cpu", "auto", "auto", "none", "cpu", "auto"},
      {"nvfp4_w4a16_avx2", "w4a16", "auto", "none", "nvfp4_w4a16_avx2", "w4a16"},
  };
  for (const Row& row : rows) {
    const auto choice = resolve_backends(row.fp4, row.mode, row.runner, row.a2a);
    if (row.backend == nullptr) {
      ASSERT_FALSE(choice) << row.fp4 << " " << row.runner << " " << row.a2a;
      EXPECT_NE(choice.error().message.find(row.mode_or_why), std::string::npos)
          << choice.error().text();
      continue;
    }
    ASSERT_TRUE(choice) << choice.error().text();
    EXPECT_EQ(choice->fp4_gemm_backend, row.backend);
    EXPECT_EQ(choice->nvfp4_mode, row.mode_or_why);
    const bool own = std::string_view(row.runner).starts_with("nvfp4_");
    EXPECT_EQ(choice->moe_runner_backend, own ? row.runner : "auto");
  }
}

TEST(Backends, EveryAcceptedNameResolvesAndEveryRefusedOneListsThem) {
  for (const UpstreamBackend& backend : upstream_fp4_backends()) {
    const auto choice = resolve_backends(std::string(backend.name), "auto", "auto", "none");
    EXPECT_EQ(choice.has_value(), !backend.backend.empty()) << backend.name;
    if (!choice) {
      EXPECT_NE(choice.error().message.find("flashinfer_cutlass"), std::string::npos);
    }
  }
  for (const UpstreamBackend& runner : upstream_moe_runners()) {
    EXPECT_EQ(resolve_backends("auto", "auto", std::string(runner.name), "none").has_value(),
              !runner.backend.empty())
        << runner.name;
  }
}

}  // namespace
}  // namespace nibble::apps
