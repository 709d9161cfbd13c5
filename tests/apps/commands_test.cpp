#include "apps/commands.h"

#include <filesystem>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "apps/capabilities.h"
#include "apps/engine_flags.h"
#include "apps/load_text.h"
#include "support/checkpoint_editor.h"
#include "support/data_dir.h"
#include "support/temp_dir.h"

namespace nibble::apps {
namespace {

int run(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "nibble");
  return run_program(static_cast<int>(arguments.size()), arguments.data());
}

TEST(Program, ExplainsItselfAndRefusesWhatItDoesNotKnow) {
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_EQ(run({"--version"}), 0);
  EXPECT_EQ(run({}), 2);
  EXPECT_EQ(run({"serv"}), 2);
  EXPECT_EQ(run({"serve", "--no-such-flag"}), 2);
  EXPECT_EQ(run({"serve", "--port", "x"}), 2);
  EXPECT_EQ(run({"serve", "--port", "70000"}), 2);
  for (const AddCommand add : commands()) {
    CLI::App app;
    Action action;
    add(app, action);
    const std::string name =
        app.get_subcommands([](const CLI::App*) { return true; })[0]->get_name();
    EXPECT_EQ(run({name.c_str(), "--help"}), 0) << name;
  }
}

TEST(Serve, RefusesBeforeItLoadsAnything) {
  EXPECT_EQ(run({"serve"}), 1);
  EXPECT_EQ(run({"serve", "--model-path", "/does/not/exist"}), 1);
  EXPECT_EQ(run({"serve", "--model-path", "/tmp", "--nvfp4-mode", "w8"}), 1);
  EXPECT_EQ(run({"serve", "--model-path", "/tmp", "--tp-size", "2"}), 1);
  EXPECT_EQ(run({"serve", "--model-path", "/tmp", "--fp4-gemm-backend", "aiter"}), 1);
  EXPECT_EQ(run({"serve", "--model-path", "/tmp", "--device", "tpu"}), 1);
  EXPECT_EQ(run({"serve", "--model-path", "/tmp", "--cuda-step", "both"}), 2);
  EXPECT_EQ(run({"serve", "--print-capabilities"}), 0);
}

TEST(Capabilities, NameTheCpuAndAKernelForEveryMode) {
  const std::string text = describe_capabilities();
  for (const char* word : {"CPU: ", "cpu: 1 device", "w4a16", "w4a4", "bf16"}) {
    EXPECT_NE(text.find(word), std::string::npos) << text;
  }
}

TEST(EngineFlags, ResolveToTheConfiguration) {
  EngineFlags flags;
  EXPECT_FALSE(resolve_engine_config(flags));
  flags.model_path = "/model";
  flags.device = "cpu";
  flags.cpu_isa = "scalar";
  flags.page_size = 32;
  flags.disable_radix_cache = true;
  const auto config = resolve_engine_config(flags);
  ASSERT_TRUE(config);
  EXPECT_EQ(config->cpu_isa, CpuIsa::Scalar);
  EXPECT_EQ(config->page_size, 32);
  EXPECT_EQ(config->max_running_requests, engine::EngineConfig{}.max_running_requests);
  EXPECT_FALSE(config->prefix_cache);
  EXPECT_EQ(config->fused_step, std::nullopt);
  flags.cuda_step = "fused";
  EXPECT_EQ(resolve_engine_config(flags)->fused_step, true);
  flags.cuda_step = "ops";
  EXPECT_EQ(resolve_engine_config(flags)->fused_step, false);
  flags.device = "cuda:x";
  EXPECT_FALSE(resolve_engine_config(flags));
  flags.device = "cuda:99";
  EXPECT_FALSE(resolve_engine_config(flags));
}

TEST(EngineFlags, StoreKeysAndValuesAsTheCheckpointAsks) {
  const std::string source = test::stored_golden_path("llama-nvfp4");
  checkpoint::CheckpointEditor editor(source);
  boost::json::object& quant = editor.config().at("quantization_config").as_object();
  const auto kv_dtype = [&](const char* asked) {
    editor.write();
    EngineFlags flags;
    flags.model_path = editor.directory().path();
    flags.device = "cpu";
    flags.kv_cache_dtype = asked;
    const auto config = resolve_engine_config(flags);
    return config ? config->kv_dtype : DType::U8;
  };
  quant.erase("kv_cache_scheme");
  quant.erase("kv_cache_quant_algo");
  EXPECT_EQ(kv_dtype("auto"), DType::BF16);
  EXPECT_EQ(kv_dtype("fp8_e4m3"), DType::E4M3);
  quant["kv_cache_scheme"] =
      boost::json::object{{"dynamic", false}, {"num_bits", 8}, {"type", "float"}};
  EXPECT_EQ(kv_dtype("auto"), DType::E4M3);
  EXPECT_EQ(kv_dtype("bfloat16"), DType::BF16);
  quant["kv_cache_scheme"] = "FP8";
  EXPECT_EQ(kv_dtype("auto"), DType::E4M3);
  for (const char* other : {"NVFP4", "INT8"}) {
    quant["kv_cache_scheme"] = other;
    EXPECT_EQ(kv_dtype("auto"), DType::BF16) << other;
  }
}

TEST(LoadText, SaysWhatIsMissing) {
  const auto missing = load_text_model("/does/not/exist", "");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().where, "/does/not/exist/tokenizer.json");
  const auto defaults = load_sampling_defaults("/does/not/exist");
  ASSERT_TRUE(defaults);
  EXPECT_EQ(defaults->temperature, 1.0f);
}

TEST(Inspect, JudgesTheFilesForTextAsServingDoes) {
  const test::TempDir folder;
  const std::string source = test::stored_golden_path("llama-nvfp4");
  folder.copy_from(source);
  const auto inspect = [&](std::vector<const char*> flags) {
    flags.insert(flags.begin(), {"inspect", folder.path().c_str()});
    return run(flags);
  };
  testing::internal::CaptureStdout();
  EXPECT_EQ(inspect({}), 0);
  EXPECT_NE(testing::internal::GetCapturedStdout().find("serve will need --tokenizer-path"),
            std::string::npos);
  testing::internal::CaptureStdout();
  EXPECT_EQ(inspect({"--skip-tokenizer-init"}), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout().find("tokenizer"), std::string::npos);
  folder.write("tokenizer.json", "{");
  EXPECT_EQ(inspect({}), 1);
  EXPECT_EQ(inspect({"--skip-tokenizer-init"}), 0);
  folder.write("generation_config.json", R"({"temperature":"hot"})");
  EXPECT_EQ(inspect({"--skip-tokenizer-init"}), 1);
  const auto problems = text_problems(folder.path(), true);
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_NE(problems[0].text().find("temperature"), std::string::npos) << problems[0].text();
  EXPECT_NE(problems[1].text().find("tokenizer.json"), std::string::npos) << problems[1].text();
}

// Runs `nibble eval kl` on the golden model and gives its scores. Copies of the model are read with
// a tokenizer of other origin: the text only has to have ids below its vocabulary.
class EvalRun {
 public:
  EvalRun() {
    std::filesystem::copy_file(test::data_path("tokenizers/gpt2.tokenizer.json"),
                               folder_.file("tokenizer.json"));
    std::string text;
    for (int i = 0; i < 20; ++i) {
      text += "b d 1 f 3 z Q ";
    }
    folder_.write("text.txt", text);
  }

  boost::json::value kl(const std::string& model,
                        const std::string& reference,
                        const std::vector<std::string>& flags) {
    const std::string scores = folder_.file("scores.json");
    const std::string text = folder_.file("text.txt");
    std::vector<const char*> words{"eval",
                                   "kl",
                                   "--device",
                                   "cpu",
                                   "--model-path",
                                   model.c_str(),
                                   "--reference",
                                   reference.c_str(),
                                   "--tokenizer-path",
                                   folder_.path().c_str(),
                                   "--text",
                                   text.c_str(),
                                   "--window",
                                   "32",
                                   "--json",
                                   scores.c_str()};
    for (const std::string& flag : flags) {
      words.push_back(flag.c_str());
    }
    testing::internal::CaptureStdout();
    EXPECT_EQ(run(words), 0);
    testing::internal::GetCapturedStdout();
    return boost::json::parse(folder_.read("scores.json")).at("all");
  }

 private:
  test::TempDir folder_;
};

TEST(Eval, AModeFileIsTheModelsAndNotTheReferences) {
  const test::TempDir folder;
  const std::string source = test::stored_golden_path("llama-nvfp4");
  EvalRun eval;
  const auto kl = [&](const char* rules) {
    folder.write("modes.json", rules);
    const auto scores = eval.kl(
        source,
        source,
        {"--reference-nvfp4-mode", "w4a16", "--nvfp4-mode-file", folder.file("modes.json")});
    return scores.at("kl").to_number<double>();
  };
  EXPECT_GT(kl(R"({"*": "w4a4"})"), 0);
  EXPECT_EQ(kl(R"({"*": "w4a16"})"), 0);
}

TEST(Eval, EachOfTwoCheckpointsHasTheKvCacheThatItAsksFor) {
  const std::string source = test::stored_golden_path("llama-nvfp4");
  checkpoint::CheckpointEditor editor(source);
  editor.config().at("quantization_config").as_object()["kv_cache_scheme"] = "FP8";
  editor.write();
  const std::string fp8 = editor.directory().path();
  EvalRun eval;
  const auto same = eval.kl(source, source, {});
  const auto model = eval.kl(fp8, source, {});
  const auto reference = eval.kl(source, fp8, {});
  EXPECT_EQ(same.at("kl").to_number<double>(), 0);
  EXPECT_GT(model.at("kl").to_number<double>(), 0);
  EXPECT_EQ(model.at("reference_ppl"), same.at("reference_ppl"));
  EXPECT_GT(reference.at("kl").to_number<double>(), 0);
  EXPECT_EQ(reference.at("ppl"), same.at("ppl"));
  EXPECT_EQ(reference.at("reference_ppl"), model.at("ppl"));
  const auto asked = eval.kl(fp8, source, {"--kv-cache-dtype", "bfloat16"});
  EXPECT_EQ(asked.at("kl").to_number<double>(), 0);
}

TEST(Quantize, LeavesNothingBesideItsDestination) {
  const test::TempDir dir;
  const std::string source = test::stored_golden_path("vendor/llama-base");
  const std::string detour = dir.file("a/e/../f");
  EXPECT_EQ(run({"quantize", source.c_str(), detour.c_str(), "--recipe", "max"}), 0);
  EXPECT_TRUE(std::filesystem::exists(dir.file("a/f/config.json")));
  EXPECT_FALSE(std::filesystem::exists(dir.file("a/e")));
}

TEST(Quantize, RefusesAShardSizeThatIsNone) {
  for (const char* size : {"nan", "1e300", "0", "-1"}) {
    testing::internal::CaptureStderr();
    EXPECT_NE(run({"quantize", "/does/not/exist", "/does/not/exist2", "--max-shard-gb", size}), 0);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("--max-shard-gb"), std::string::npos)
        << size;
  }
}

}  // namespace
}  // namespace nibble::apps
