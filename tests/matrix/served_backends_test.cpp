// Every accepted backend name, from the flag to the answer: flags -> engine -> server -> /generate
// and /server_info. All names of one device and mode end in the same kernels, so the answers are
// the same.
#include <fstream>
#include <set>
#include <sstream>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/engine_flags.h"
#include "apps/upstream_flags.h"
#include "base/cpu_info.h"
#include "engine/engine.h"
#include "ops/attention.h"
#include "ops/decode_step.h"
#include "ops/experts.h"
#include "ops/gemm.h"
#include "server/http_client.h"
#include "server/server.h"
#include "support/data_dir.h"

namespace nibble::apps {
namespace {

struct Served {
  std::string answer;    // token ids of /generate, or the error
  std::string fp4_gemm;  // resolved names in /server_info
  std::string moe;
};

Served serve(const std::string& model, const std::string& fp4_gemm, const std::string& moe) {
  EngineFlags flags;
  flags.model_path = test::stored_golden_path(model);
  flags.fp4_gemm_backend = fp4_gemm;
  flags.moe_runner_backend = moe;
  flags.max_total_tokens = 256;
  flags.max_running_requests = 2;
  flags.num_threads = 2;
  flags.log_level = "error";
  const auto config = resolve_engine_config(flags);
  if (!config) {
    return {config.error().text(), "", ""};
  }
  const auto engine = engine::Engine::create(*config);
  if (!engine) {
    return {engine.error().text(), "", ""};
  }
  const auto server = server::Server::start({}, **engine, nullptr).value();
  const auto reply = test::http(server->port(),
                                "POST",
                                "/generate",
                                R"({"input_ids": [5, 6, 7, 8, 9, 10, 11], "sampling_params":
                                    {"temperature": 0, "max_new_tokens": 12, "ignore_eos": true}})");
  const auto info = test::http(server->port(), "GET", "/server_info").json();
  const auto name = [&](const char* key) {
    const boost::json::value& value = info.at("resolved_backends").at(key);
    return value.is_null() ? std::string("null") : std::string(value.as_string());
  };
  return {
      boost::json::serialize(reply.json().at("output_ids")), name("fp4_gemm"), name("moe_runner")};
}

TEST(ServedBackends, EveryAcceptedFp4NameGivesTheSameAnswer) {
  for (const char* model : {"llama-nvfp4", "qwen3_moe-nvfp4"}) {
    const Served expected = serve(model, "auto", "auto");
    EXPECT_THAT(expected.answer, testing::StartsWith("["));
    EXPECT_THAT(expected.fp4_gemm, testing::StartsWith("nvfp4_w4a16_"));
    std::vector<std::string> names{"cpu", expected.fp4_gemm};
    for (const UpstreamBackend& backend : upstream_fp4_backends()) {
      if (!backend.backend.empty()) {
        names.emplace_back(backend.name);
      }
    }
    for (const std::string& name : names) {
      const Served served = serve(model, name, "auto");
      EXPECT_EQ(served.answer, expected.answer) << model << " " << name;
      EXPECT_EQ(served.fp4_gemm, expected.fp4_gemm) << model << " " << name;
    }
    const Served refused = serve(model, "triton", "auto");
    EXPECT_THAT(refused.answer, testing::HasSubstr("--fp4-gemm-backend: triton is only supported"));
  }
}

TEST(ServedBackends, EveryAcceptedMoeRunnerGivesTheSameAnswer) {
  const char* model = "qwen3_moe-nvfp4";
  const Served expected = serve(model, "auto", "auto");
  EXPECT_THAT(expected.moe, testing::StartsWith("nvfp4_grouped_w4a16_"));
  std::vector<std::string> names{"cpu", expected.moe};
  for (const UpstreamBackend& runner : upstream_moe_runners()) {
    if (!runner.backend.empty()) {
      names.emplace_back(runner.name);
    }
  }
  for (const std::string& name : names) {
    const Served served = serve(model, "auto", name);
    EXPECT_EQ(served.answer, expected.answer) << name;
    EXPECT_EQ(served.moe, expected.moe) << name;
  }
  EXPECT_EQ(serve("llama-nvfp4", "auto", "auto").moe, "null");
  EXPECT_THAT(serve(model, "auto", "deep_gemm").answer,
              testing::HasSubstr("--moe-runner-backend: deep_gemm has no NVFP4 kernels"));
  EXPECT_THAT(serve(model, "auto", "unheard_of").answer,
              testing::HasSubstr("this build has no backend of that name"));
}

// ---- docs/backends.md ----

std::string read_docs() {
  const std::ifstream file(NIBBLE_BACKENDS_DOCS);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// `a_{b,c}` in the first cell of a row of tables.
std::set<std::string> names_in_tables(const std::string& docs) {
  std::set<std::string> names;
  std::stringstream lines(docs);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("| `")) {
      names.insert(line.substr(3, line.find('`', 3) - 3));
    }
  }
  return names;
}

template <typename List>
void add_names(const List& list, std::set<std::string>& names) {
  for (const auto* backend : list) {
    names.insert(std::string(backend->name));
  }
}

TEST(BackendsDocs, ListExactlyTheKernelsOfTheCode) {
  const std::set<std::string> listed = names_in_tables(read_docs());
  ASSERT_FALSE(listed.empty());
  std::set<std::string> built;
  add_names(gemm_backends(), built);
  add_names(experts_backends(), built);
  add_names(attention_backends(), built);
  add_names(decode_step_backends(), built);
  for (const std::string& name : built) {
    EXPECT_TRUE(listed.contains(name)) << name << " is not in docs/backends.md";
  }
  for (const std::string& name : listed) {
    // A build without CUDA lacks these, one with CUDA nothing.
    const bool cuda = name.find("sm90") != std::string::npos ||
                      name.find("sm80") != std::string::npos ||
                      name.find("cublaslt") != std::string::npos || name.ends_with("_cuda") ||
                      name == "attention_decode_paged";
    EXPECT_TRUE((cuda && decode_step_backends().empty()) || built.contains(name))
        << name << " is in docs/backends.md only";
  }
}

TEST(BackendsDocs, GiveTheReasonsOfRefusals) {
  const std::string docs = read_docs();
  GemmDesc gemm;
  gemm.mode = kW4A16;
  gemm.n = gemm.k = gemm.part_rows[0] = 64;
  GemmDesc ragged = gemm;
  ragged.k = 24;
  GemmDesc fp8 = gemm;
  fp8.mode = {QuantMode::Weight::Fp8, QuantMode::Act::Fp8};
  GemmDesc swiglu = gemm;
  swiglu.epilogue = Epilogue::SwiGlu;
  ExpertsDesc many;
  many.mode = kW4A16;
  many.hidden = many.ffn = 64;
  many.topk = 1;
  many.experts = 100000;
  const auto refusal = [](const auto& backends, auto desc, int isa) {
    desc.isa = isa;
    for (const auto* backend : backends) {
      if (backend->name.find("cpu_reference") != std::string_view::npos) {
        return backend->supports(desc).why_not;
      }
    }
    return std::string("no reference");
  };
  const int isa = static_cast<int>(detect_cpu_isa());
  for (const std::string& why : {refusal(gemm_backends(), ragged, isa),
                                 refusal(gemm_backends(), fp8, isa),
                                 refusal(gemm_backends(), swiglu, isa),
                                 refusal(experts_backends(), many, isa)}) {
    EXPECT_FALSE(why.empty());
    EXPECT_NE(docs.find(why), std::string::npos) << why;
  }
}

}  // namespace
}  // namespace nibble::apps
