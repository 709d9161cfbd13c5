#include "engine/decode_graphs.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/data_dir.h"
#include "support/engine_harness.h"
#include "support/forward_harness.h"

namespace nibble::engine {
namespace {

using test::Answer;
using testing::ElementsAre;

TEST(DecodeGraphSizes, AreTheListThatUpstreamHasUpTo512) {
  EXPECT_THAT(decode_graph_sizes(8), ElementsAre(1, 2, 4, 8));
  EXPECT_EQ(decode_graph_sizes(24).size(), 7u);
  EXPECT_EQ(decode_graph_sizes(160).size(), 24u);
  EXPECT_EQ(decode_graph_sizes(256).size(), 36u);
  EXPECT_EQ(decode_graph_sizes(512).size(), 52u);
  EXPECT_TRUE(decode_graph_sizes(0).empty());
}

TEST(DecodeGraphSizes, EndWithTheLargestBatch) {
  EXPECT_THAT(decode_graph_sizes(1), ElementsAre(1));
  EXPECT_THAT(decode_graph_sizes(11), ElementsAre(1, 2, 4, 8, 11));
}

class DecodeGraphsOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::has_device(Device::Kind::Cuda)) {
      GTEST_SKIP() << "this machine has no cuda device";
    }
  }
  static std::unique_ptr<Engine> start(bool graphs, bool overlap = true, int64_t tokens = 0) {
    EngineConfig config = test::tiny_config(test::data_path("golden/qwen3-nvfp4"));
    config.device = {Device::Kind::Cuda, 0};
    config.decode_graphs = graphs;
    config.overlap = overlap;
    if (tokens > 0) {
      config.max_total_tokens = tokens;
    }
    config.max_running_requests = 20;
    config.prefix_cache = false;
    return test::start_engine(config);
  }
  // filters: some ask for top_p or top_k, so that the host draws.
  static Request request(size_t i, bool on_host, bool filters = true) {
    std::vector<int32_t> ids;
    for (size_t t = 0; t < 3 + 5 * i; ++t) {
      ids.push_back(static_cast<int32_t>((t * 37 + i * 11) % 500));
    }
    Request request = test::greedy_request(std::move(ids), static_cast<int32_t>(4 + i % 7));
    request.logprobs.output = true;
    request.logprobs.top = on_host ? 1 : 0;  // alternatives: only the host can report them
    if (i % 3 == 1) {
      request.sampling.temperature = 0.9f;
      request.sampling.seed = 77 + i;
    }
    if (filters && i % 6 == 4) {
      request.sampling.top_p = 0.8f;
    }
    if (filters && i % 6 == 1) {
      request.sampling.top_k = 20;
    }
    return request;
  }
  static std::vector<Answer> together(Engine& engine, size_t count, bool on_host) {
    std::vector<std::unique_ptr<test::Pending>> pending;
    for (size_t i = 0; i < count; ++i) {
      pending.push_back(std::make_unique<test::Pending>(engine, request(i, on_host)));
    }
    std::vector<Answer> answers;
    for (const auto& one : pending) {
      answers.push_back(one->wait());
    }
    return answers;
  }
};

TEST_F(DecodeGraphsOnGpu, ReplayGivesTheBitsOfStepsThatAreNotCaptured) {
  const auto eager = start(false);
  const auto captured = start(true);
  for (const size_t count : {2u, 3u, 13u, 20u}) {
    const std::vector<Answer> want = together(*eager, count, false);
    const std::vector<Answer> got = together(*captured, count, false);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(got[i].tokens, want[i].tokens) << i << " of " << count;
      EXPECT_EQ(test::logprob_bits(got[i]), test::logprob_bits(want[i])) << i << " of " << count;
    }
    EXPECT_NE(test::logprob_bits(want[0]), test::logprob_bits(want[count - 1])) << count;
  }
}

void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].tokens, want[i].tokens) << i;
    EXPECT_EQ(test::logprob_bits(got[i]), test::logprob_bits(want[i])) << i;
    EXPECT_EQ(got[i].last.finish, want[i].last.finish) << i;
  }
}

TEST_F(DecodeGraphsOnGpu, StepsThatBeginEarlyGiveTheSameBits) {
  const auto plain = start(true, false);
  const auto early = start(true, true);
  for (const size_t count : {1u, 2u, 9u, 20u}) {
    expect_same(together(*early, count, false), together(*plain, count, false));
    expect_same(together(*early, count, true), together(*plain, count, true));
  }
  // Requests that end by a token that the next step did not wait for.
  const std::vector<Answer> whole = together(*plain, 20, false);
  const auto stopped = [&](Engine& engine, bool filters) {
    std::vector<std::unique_ptr<test::Pending>> pending;
    for (size_t i = 0; i < 20; ++i) {
      Request one = request(i, false, filters);
      one.sampling.max_new_tokens = 40;
      if (i % 2 == 0) {
        one.sampling.ignore_eos = false;
        one.sampling.stop_token_ids = {whole[i].tokens[2 + i % 2]};
      }
      pending.push_back(std::make_unique<test::Pending>(engine, std::move(one)));
    }
    std::vector<Answer> answers;
    for (const auto& one : pending) {
      answers.push_back(one->wait());
    }
    return answers;
  };
  expect_same(stopped(*early, true), stopped(*plain, true));
  const int64_t before = early->load().early_steps;
  const std::vector<Answer> want = stopped(*plain, false);
  expect_same(stopped(*early, false), want);
  EXPECT_EQ(want[0].last.finish, FinishReason::StopToken);
  EXPECT_GT(early->load().early_steps, before + 20);
  EXPECT_EQ(plain->load().early_steps, 0);
  EXPECT_EQ(early->load().used_tokens, 0);
}

TEST_F(DecodeGraphsOnGpu, RetractionsAndAbortsAmongEarlyStepsChangeNothing) {
  const auto plain = start(true, false);
  const auto early = start(true, true, 416);  // 26 pages for 20 requests of up to 7
  const auto answers_of = [&](Engine& engine, bool aborts) {
    std::vector<std::unique_ptr<test::Pending>> pending;
    for (size_t i = 0; i < 20; ++i) {
      Request one = request(i % 10, false, false);
      one.sampling.max_new_tokens = 60;
      pending.push_back(std::make_unique<test::Pending>(engine, std::move(one)));
    }
    if (aborts) {
      pending[3]->wait_for_tokens(5);
      engine.abort(pending[3]->id());
      engine.abort(pending[7]->id());
    }
    std::vector<Answer> answers;
    for (const auto& one : pending) {
      answers.push_back(one->wait());
    }
    return answers;
  };
  const std::vector<Answer> want = answers_of(*plain, false);
  const std::vector<Answer> got = answers_of(*early, true);
  int64_t retractions = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    retractions += got[i].last.num_retractions;
    if (i == 3 || i == 7) {
      EXPECT_EQ(got[i].last.finish, FinishReason::Abort);
      EXPECT_TRUE(std::equal(got[i].tokens.begin(), got[i].tokens.end(), want[i].tokens.begin()));
      continue;
    }
    EXPECT_EQ(got[i].tokens, want[i].tokens) << i;
    EXPECT_EQ(test::logprob_bits(got[i]), test::logprob_bits(want[i])) << i;
  }
  EXPECT_GT(retractions, 0);
  EXPECT_EQ(early->load().used_tokens, 0);
}

TEST_F(DecodeGraphsOnGpu, TokensDrawnOnTheDeviceAreThoseOfTheHost) {
  const auto engine = start(true);
  const std::vector<Answer> device = together(*engine, 20, false);
  const std::vector<Answer> host = together(*engine, 20, true);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(device[i].tokens, host[i].tokens) << i;
    ASSERT_EQ(device[i].logprobs.size(), host[i].logprobs.size());
    for (size_t t = 0; t < host[i].logprobs.size(); ++t) {
      EXPECT_TRUE(device[i].logprobs[t].top.empty());
      EXPECT_EQ(host[i].logprobs[t].top.size(), 1u);
      EXPECT_NEAR(device[i].logprobs[t].token->logprob, host[i].logprobs[t].token->logprob, 1e-5);
    }
  }
}

}  // namespace
}  // namespace nibble::engine
