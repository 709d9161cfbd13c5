// Decode steps of one token as one kernel against the kernels one after another: the same bits,
// also through graphs, new weights and memory that was away.
#include <gtest/gtest.h>

#include "support/engine_harness.h"
#include "support/forward_harness.h"
#include "support/random_model.h"
#include "support/temp_dir.h"

namespace nibble::engine {
namespace {

using test::Answer;

constexpr Device kGpu{Device::Kind::Cuda, 0};
constexpr std::string_view kKernel = "decode_step_sm90";

// A model of random weights, quantized while it loads.
class Weights {
 public:
  explicit Weights(const test::RandomModel& model) {
    test::write_random_model(model, directory_.path());
  }
  const std::string& path() const { return directory_.path(); }

 private:
  test::TempDir directory_;
};

class DecodeStepOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::has_device(Device::Kind::Cuda) || test::best_isa(kGpu) != 90) {
      GTEST_SKIP() << "this machine has no Hopper GPU";
    }
  }
  static EngineConfig config(const std::string& directory, bool fused, bool graphs) {
    EngineConfig config = test::tiny_config(directory);
    config.device = kGpu;
    config.online_nvfp4 = true;
    config.fused_step = fused;
    config.decode_graphs = graphs;
    config.max_running_requests = 4;
    config.prefix_cache = false;
    return config;
  }
  static std::unique_ptr<Engine> start(const std::string& directory, bool fused, bool graphs) {
    auto engine = test::start_engine(config(directory, fused, graphs));
    EXPECT_EQ(engine->info().step_kernel, fused ? kKernel : "");
    return engine;
  }
  // Greedy, with the logprobs of the best tokens where `top` is not 0.
  static Request request(size_t length, int32_t count, int32_t top) {
    std::vector<int32_t> ids;
    ids.reserve(length);
    for (size_t t = 0; t < length; ++t) {
      ids.push_back(static_cast<int32_t>((t * 37 + length * 11) % 500));
    }
    Request request = test::greedy_request(std::move(ids), count);
    request.logprobs.output = true;
    request.logprobs.top = top;
    return request;
  }
  // Alone and in company: a batch shrinks to one sequence when the others are done.
  static std::vector<Answer> answers(Engine& engine) {
    std::vector<Answer> all;
    for (const size_t length : {1u, 15u, 16u, 130u, 700u}) {
      all.push_back(test::generate(engine, request(length, 40, length % 2 == 0 ? 20 : 0)));
    }
    std::vector<std::unique_ptr<test::Pending>> pending;
    constexpr size_t kTogether = 3;
    pending.reserve(kTogether);
    for (size_t i = 0; i < kTogether; ++i) {
      pending.push_back(std::make_unique<test::Pending>(
          engine, request(20 + i, static_cast<int32_t>(8 + 16 * i), 5)));
    }
    for (const auto& one : pending) {
      all.push_back(one->wait());
    }
    return all;
  }
  static void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].tokens, want[i].tokens) << i;
      EXPECT_EQ(test::logprob_bits(got[i]), test::logprob_bits(want[i])) << i;
    }
  }
  static void expect_same_bits(const test::RandomModel& model) {
    const Weights weights(model);
    const auto ops = start(weights.path(), false, false);
    const std::vector<Answer> want = answers(*ops);
    EXPECT_NE(want[0].tokens, want[1].tokens);
    for (const bool graphs : {false, true}) {
      const auto fused = start(weights.path(), true, graphs);
      SCOPED_TRACE(graphs ? "captured" : "not captured");
      expect_same(answers(*fused), want);
      expect_same(answers(*fused), want);  // what a step leaves behind does not matter
    }
  }
};

TEST_F(DecodeStepOnGpu, GivesTheBitsOfTheKernelsOneAfterAnother) { expect_same_bits({}); }

TEST_F(DecodeStepOnGpu, TakesModelsWithoutNormsOfHeads) {
  expect_same_bits({.hidden = 512, .head_dim = 128, .architecture = "LlamaForCausalLM"});
}

TEST_F(DecodeStepOnGpu, AddsTheBiasOfQAndKAndV) {
  expect_same_bits({.heads = 8, .kv_heads = 1, .inner = 768, .architecture = "Qwen2ForCausalLM"});
}

TEST_F(DecodeStepOnGpu, LeavesTheKeysAndValuesThatLaterTurnsRead) {
  const Weights weights({});
  const auto turns = [&weights](bool fused) {
    EngineConfig c = config(weights.path(), fused, true);
    c.prefix_cache = true;
    c.reuse_generated_kv = true;
    const auto engine = test::start_engine(c);
    const Answer first = test::generate(*engine, request(20, 60, 0));
    Request second = request(20, 30, 5);
    second.prompt.insert(second.prompt.end(), first.tokens.begin(), first.tokens.end());
    second.prompt.push_back(7);
    const Answer answer = test::generate(*engine, std::move(second));
    EXPECT_GT(answer.last.cached_tokens, 60);
    return std::vector<Answer>{first, answer};
  };
  expect_same(turns(true), turns(false));
}

TEST_F(DecodeStepOnGpu, StaysRightWithNewWeightsAndMemoryThatWasAway) {
  const Weights one({});
  const Weights other({.seed = 2});
  const auto update = [](Engine& engine, const std::string& directory, bool in_place = false) {
    WeightUpdate wanted;
    wanted.model_path = directory;
    wanted.allow_in_place = in_place;
    return engine.update_weights(wanted);
  };
  const std::vector<Answer> want = answers(*start(one.path(), false, true));
  const std::vector<Answer> want_other = answers(*start(other.path(), false, true));
  EXPECT_NE(want[0].tokens, want_other[0].tokens);
  for (const bool graphs : {false, true}) {
    SCOPED_TRACE(graphs ? "captured" : "not captured");
    const auto engine = start(one.path(), true, graphs);
    expect_same(answers(*engine), want);
    ASSERT_TRUE(update(*engine, other.path()).has_value());
    expect_same(answers(*engine), want_other);

    ASSERT_TRUE(engine->release_memory({}).has_value());
    ASSERT_TRUE(engine->resume_memory({}).has_value());
    ASSERT_TRUE(update(*engine, one.path()).has_value());
    expect_same(answers(*engine), want);

    ASSERT_TRUE(engine->release_memory({MemoryTag::KvCache}).has_value());
    ASSERT_TRUE(engine->resume_memory({MemoryTag::KvCache}).has_value());
    expect_same(answers(*engine), want);
  }
  // Without spare memory the new weights overwrite the old ones.
  EngineConfig tight = config(one.path(), true, true);
  tight.max_staging_bytes = 0;
  const auto engine = test::start_engine(tight);
  const auto report = update(*engine, other.path(), true);
  ASSERT_TRUE(report.has_value()) << report.error().text();
  EXPECT_TRUE(report->in_place);
  expect_same(answers(*engine), want_other);
}

TEST_F(DecodeStepOnGpu, KeepsMemoryOnlyWhereItRuns) {
  const auto bytes = [](const Engine& engine) {
    int64_t sum = 0;
    for (const ModelInfo::Segment& segment : engine.info().memory) {
      sum += segment.name == "decode_step" ? segment.size_bytes : 0;
    }
    return sum;
  };
  const Weights weights({});
  EXPECT_GT(bytes(*start(weights.path(), true, false)), 0);
  EXPECT_EQ(bytes(*start(weights.path(), false, false)), 0);
  EngineConfig fp8 = config(weights.path(), true, true);
  fp8.kv_dtype = DType::E4M3;
  const auto engine = test::start_engine(fp8);  // asked for, not possible: op by op
  EXPECT_EQ(engine->info().step_kernel, "");
  EXPECT_EQ(bytes(*engine), 0);
  EXPECT_EQ(test::generate(*engine, request(20, 5, 0)).tokens.size(), 5u);
}

}  // namespace
}  // namespace nibble::engine
