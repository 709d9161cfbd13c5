// The engine over a tiny NVFP4 model: what a request gets must not depend on anything but itself.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "support/data_dir.h"
#include "support/engine_harness.h"

namespace nibble::engine {
namespace {

using test::Answer;
using test::generate;
using test::greedy_request;
using test::logprob_bits;
using test::Pending;
using testing::HasSubstr;

std::string tiny_model() { return test::data_path("golden/llama-nvfp4"); }

std::vector<int32_t> random_prompt(uint64_t seed, int64_t length) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < length; ++i) {
    tokens.push_back(static_cast<int32_t>(random_u64(seed, static_cast<uint64_t>(i)) % 512));
  }
  return tokens;
}

// Requests of all kinds: greedy and sampled, penalties, logprobs of output and prompt.
std::vector<Request> mixed_requests(int count) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    const auto seed = static_cast<uint64_t>(i);
    // Every third shares a prefix with the others of its kind.
    std::vector<int32_t> prompt = random_prompt(i % 3 == 0 ? 1000 : seed, 1 + (i * 7) % 90);
    if (i % 3 == 0) {
      prompt.push_back(i);
    }
    Request request = greedy_request(std::move(prompt), 8 + i % 17);
    if (i % 2 == 1) {
      request.sampling.temperature = 0.8f;
      request.sampling.seed = seed;
      request.sampling.top_p = i % 4 == 1 ? 0.9f : 1.0f;
      request.sampling.top_k = i % 5 == 0 ? 20 : -1;
      request.sampling.frequency_penalty = i % 7 == 0 ? 0.5f : 0.0f;
    }
    request.logprobs.output = true;
    request.logprobs.top = i % 4;
    request.logprobs.prompt_start = i % 5 == 0 ? 0 : -1;
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<Answer> one_at_a_time(const EngineConfig& config, int count) {
  const auto engine = test::start_engine(config);
  std::vector<Answer> answers;
  for (Request& request : mixed_requests(count)) {
    answers.push_back(generate(*engine, std::move(request)));
  }
  return answers;
}

std::vector<Answer> all_at_once(const EngineConfig& config, int count) {
  const auto engine = test::start_engine(config);
  std::vector<Pending> pending;
  for (Request& request : mixed_requests(count)) {
    pending.emplace_back(*engine, std::move(request));
  }
  std::vector<Answer> answers;
  for (Pending& request : pending) {
    answers.push_back(request.wait());
  }
  EXPECT_EQ(engine->load().used_tokens, 0);
  return answers;
}

void expect_same_bits(const std::vector<Answer>& a, const std::vector<Answer>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].tokens, b[i].tokens) << "request " << i;
    EXPECT_EQ(logprob_bits(a[i]), logprob_bits(b[i])) << "request " << i;
    EXPECT_EQ(a[i].prompt_logprobs.size(), b[i].prompt_logprobs.size()) << "request " << i;
  }
}

EngineConfig plain_config() {
  EngineConfig config = test::tiny_config(tiny_model());
  config.prefix_cache = false;
  return config;
}

TEST(Engine, ThirtyTwoAtOnceGiveTheSameBitsAsOneAtATime) {
  for (const Nvfp4Mode mode : {Nvfp4Mode::W4A16, Nvfp4Mode::W4A4}) {
    EngineConfig config = plain_config();
    config.nvfp4_mode = mode;
    const std::vector<Answer> alone = one_at_a_time(config, 32);
    config.prefix_cache = true;
    expect_same_bits(all_at_once(config, 32), alone);
  }
}

TEST(Engine, ChunkSizesThreadsAndPageSizesDoNotChangeABit) {
  const std::vector<Answer> alone = one_at_a_time(plain_config(), 12);
  EngineConfig config = plain_config();
  config.chunked_prefill_size = 5;
  config.num_threads = 1;
  expect_same_bits(all_at_once(config, 12), alone);
}

TEST(Engine, RetractionUnderPressureDoesNotChangeABit) {
  const std::vector<Answer> alone = one_at_a_time(plain_config(), 24);
  EngineConfig config = plain_config();
  config.max_total_tokens = 256;  // far less than 24 requests want
  config.prefix_cache = true;
  const std::vector<Answer> pressed = all_at_once(config, 24);
  expect_same_bits(pressed, alone);
  int64_t retractions = 0;
  for (const Answer& answer : pressed) {
    retractions += answer.last.num_retractions;
  }
  EXPECT_GT(retractions, 0) << "the pool was never under pressure";
}

TEST(Engine, APrefixHitGivesTheBitsOfAColdRun) {
  const auto cold_engine = test::start_engine(plain_config());
  const auto engine = test::start_engine(test::tiny_config(tiny_model()));
  Request request = greedy_request(random_prompt(3, 70), 20);
  request.logprobs.output = true;
  const auto again = [&] {
    Request copy = greedy_request(request.prompt, 20);
    copy.logprobs.output = true;
    return copy;
  };
  const Answer cold = generate(*cold_engine, again());
  const Answer first = generate(*engine, again());
  const Answer second = generate(*engine, again());
  EXPECT_EQ(first.last.cached_tokens, 0);
  EXPECT_EQ(second.last.cached_tokens, 64);
  EXPECT_EQ(second.tokens, cold.tokens);
  EXPECT_EQ(logprob_bits(second), logprob_bits(cold));

  // A conversation that goes on also reuses what was generated, where prefill and decode are one
  // order.
  const int64_t reused = test::test_device().kind == Device::Kind::Cpu ? 80 : 64;
  std::vector<int32_t> longer = request.prompt;
  longer.insert(longer.end(), cold.tokens.begin(), cold.tokens.end());
  longer.push_back(7);
  const Answer warm_longer = generate(*engine, greedy_request(longer, 8));
  EXPECT_EQ(warm_longer.last.cached_tokens, reused);
  EXPECT_EQ(warm_longer.tokens, generate(*cold_engine, greedy_request(longer, 8)).tokens);
}

TEST(Engine, ExtraKeysKeepPrefixesApart) {
  const auto engine = test::start_engine(test::tiny_config(tiny_model()));
  const auto cached_with = [&](const std::string& key) {
    Request request = greedy_request(random_prompt(3, 40), 1);
    request.extra_key = key;
    return generate(*engine, std::move(request)).last.cached_tokens;
  };
  EXPECT_EQ(cached_with("a"), 0);
  EXPECT_EQ(cached_with("b"), 0);
  EXPECT_EQ(cached_with("a"), 32);
}

TEST(Engine, AbortFreesThePagesAndLeavesTheOthersAlone) {
  const auto engine = test::start_engine(plain_config());
  const Answer alone = generate(*engine, greedy_request(random_prompt(1, 30), 40));
  Pending victim(*engine, greedy_request(random_prompt(2, 30), 1500));
  Pending neighbour(*engine, greedy_request(random_prompt(1, 30), 40));
  victim.wait_for_tokens(3);
  engine->abort(victim.id());
  const Answer aborted = victim.wait();
  EXPECT_EQ(aborted.last.finish, FinishReason::Abort);
  EXPECT_GE(aborted.tokens.size(), 3u);
  EXPECT_EQ(neighbour.wait().tokens, alone.tokens);
  engine->abort(victim.id());  // gone already: ignored
  generate(*engine, greedy_request({1}, 1));
  EXPECT_EQ(engine->load().used_tokens, 0);
}

TEST(Engine, AbortAllEndsWaitingAndRunningRequests) {
  EngineConfig config = plain_config();
  config.max_running_requests = 2;
  const auto engine = test::start_engine(config);
  std::vector<Pending> pending;
  for (uint64_t i = 0; i < 6; ++i) {
    pending.emplace_back(*engine, greedy_request(random_prompt(i, 20), 1500));
  }
  pending[0].wait_for_tokens(1);
  engine->abort_all();
  for (Pending& request : pending) {
    EXPECT_EQ(request.wait().last.finish, FinishReason::Abort);
  }
  generate(*engine, greedy_request({1}, 1));
  EXPECT_EQ(engine->load().used_tokens, 0);
}

TEST(Engine, DestructionEndsWhatRuns) {
  auto engine = test::start_engine(plain_config());
  Pending request(*engine, greedy_request(random_prompt(1, 20), 1500));
  request.wait_for_tokens(1);
  engine = nullptr;
  EXPECT_EQ(request.wait().last.finish, FinishReason::Abort);
}

TEST(Engine, StopTokensEndARequestAndAreReported) {
  const auto engine = test::start_engine(plain_config());
  const Answer free = generate(*engine, greedy_request(random_prompt(5, 12), 12));
  Request stopped = greedy_request(random_prompt(5, 12), 12);
  stopped.sampling.ignore_eos = false;
  stopped.sampling.stop_token_ids = {free.tokens[4]};
  const Answer answer = generate(*engine, std::move(stopped));
  EXPECT_EQ(answer.last.finish, FinishReason::StopToken);
  EXPECT_EQ(answer.last.matched_token, free.tokens[4]);
  EXPECT_EQ(answer.tokens.back(), free.tokens[4]);
  EXPECT_LE(answer.tokens.size(), 5u);
}

TEST(Engine, PromptLogprobsComeOnceAndCountTheWantedPositions) {
  const auto engine = test::start_engine(test::tiny_config(tiny_model()));
  for (const int64_t length : {1, 2, 40}) {
    for (const int64_t start : {int64_t{0}, int64_t{1}, length - 1, length}) {
      Request request = greedy_request(random_prompt(9, length), 2);
      request.logprobs.prompt_start = start;
      request.logprobs.token_ids = {3, 4};
      const Answer answer = generate(*engine, std::move(request));
      ASSERT_EQ(static_cast<int64_t>(answer.prompt_logprobs.size()),
                std::max<int64_t>(length - start, 0))
          << length << " from " << start;
      for (size_t i = 0; i < answer.prompt_logprobs.size(); ++i) {
        const bool first = start == 0 && i == 0;
        EXPECT_EQ(answer.prompt_logprobs[i].token.has_value(), !first);
        EXPECT_EQ(answer.prompt_logprobs[i].chosen.size(), first ? 0u : 2u);
      }
    }
  }
}

TEST(Engine, ZeroNewTokensGivesPromptLogprobsOnly) {
  const auto engine = test::start_engine(plain_config());
  Request request = greedy_request(random_prompt(9, 10), 0);
  request.logprobs.prompt_start = 0;
  const Answer answer = generate(*engine, std::move(request));
  EXPECT_TRUE(answer.tokens.empty());
  EXPECT_EQ(answer.prompt_logprobs.size(), 10u);
  EXPECT_EQ(answer.last.finish, FinishReason::Length);
}

class EvenTokens final : public TokenMask {
 public:
  bool fill(std::span<uint32_t> bits) override {
    std::fill(bits.begin(), bits.end(), 0x55555555u);
    return true;
  }
  void accept(int32_t token) override { accepted.push_back(token); }
  std::vector<int32_t> accepted;
};

TEST(Engine, AMaskRulesEveryTokenAndIsToldOfEach) {
  const auto engine = test::start_engine(plain_config());
  Request request = greedy_request(random_prompt(4, 10), 12);
  auto mask = std::make_unique<EvenTokens>();
  request.mask = std::move(mask);
  const Answer answer = generate(*engine, std::move(request));
  ASSERT_EQ(answer.tokens.size(), 12u);
  for (const int32_t token : answer.tokens) {
    EXPECT_EQ(token % 2, 0);
  }
}

TEST(Engine, RefusesByFieldNameAndServesOnWithTheSameBits) {
  const auto engine = test::start_engine(plain_config());
  const Answer before = generate(*engine, greedy_request(random_prompt(1, 20), 10));
  const auto refusal = [&](auto&& change) {
    Request request = greedy_request(random_prompt(1, 20), 10);
    request.sink = [](Output&&) { FAIL() << "a refused request must not reach its sink"; };
    change(request);
    const Result<RequestId> result = engine->submit(std::move(request));
    return result ? std::string("accepted") : result.error().text();
  };
  EXPECT_THAT(refusal([](Request& r) { r.prompt.clear(); }), HasSubstr("input_ids"));
  EXPECT_THAT(refusal([](Request& r) { r.prompt[3] = 512; }),
              HasSubstr("input_ids: token 512 at position 3"));
  EXPECT_THAT(refusal([](Request& r) { r.prompt[3] = -1; }), HasSubstr("input_ids"));
  EXPECT_THAT(refusal([](Request& r) { r.prompt.resize(2048, 1); }),
              HasSubstr("longer than the model's context length"));
  EXPECT_THAT(refusal([](Request& r) { r.sampling.max_new_tokens = 2040; }),
              HasSubstr("sampling_params.max_new_tokens"));
  EXPECT_THAT(refusal([](Request& r) { r.sampling.min_new_tokens = 11; }),
              HasSubstr("sampling_params.min_new_tokens"));
  EXPECT_THAT(refusal([](Request& r) { r.sampling.temperature = -1; }),
              HasSubstr("sampling_params.temperature"));
  EXPECT_THAT(refusal([](Request& r) { r.sampling.top_p = 0; }),
              HasSubstr("sampling_params.top_p"));
  EXPECT_THAT(refusal([](Request& r) { r.sampling.top_k = 0; }),
              HasSubstr("sampling_params.top_k"));
  EXPECT_THAT(refusal([](Request& r) { r.sampling.min_p = 1.5f; }),
              HasSubstr("sampling_params.min_p"));
  EXPECT_THAT(refusal([](Request& r) { r.sampling.repetition_penalty = 0; }),
              HasSubstr("sampling_params.repetition_penalty"));
  EXPECT_THAT(refusal([](Request& r) { r.sampling.frequency_penalty = 3; }),
              HasSubstr("sampling_params.frequency_penalty"));
  EXPECT_THAT(refusal([](Request& r) { r.sampling.logit_bias = {{512, 1.0f}}; }),
              HasSubstr("sampling_params.logit_bias"));
  EXPECT_THAT(refusal([](Request& r) { r.logprobs.token_ids = {-3}; }),
              HasSubstr("out-of-vocabulary"));
  EXPECT_THAT(refusal([](Request& r) { r.logprobs.top = -1; }), HasSubstr("top_logprobs_num"));
  EXPECT_EQ(generate(*engine, greedy_request(random_prompt(1, 20), 10)).tokens, before.tokens);
}

TEST(Engine, RefusesWhenTheQueueIsFull) {
  EngineConfig config = plain_config();
  config.max_running_requests = 1;
  config.max_queued_requests = 1;
  const auto engine = test::start_engine(config);
  Pending a(*engine, greedy_request({1}, 1500));
  Pending b(*engine, greedy_request({1}, 1500));
  Request third = greedy_request({1}, 1);
  third.sink = [](Output&&) {};
  const Result<RequestId> refused = engine->submit(std::move(third));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Overloaded);
  engine->abort_all();
}

TEST(Engine, AWrongConfigurationIsRefusedByName) {
  const auto refusal = [](auto&& change) {
    EngineConfig config = plain_config();
    change(config);
    const auto engine = Engine::create(config);
    return engine ? std::string("accepted") : engine.error().text();
  };
  EXPECT_THAT(refusal([](EngineConfig& c) { c.page_size = 0; }), HasSubstr("page_size"));
  EXPECT_THAT(refusal([](EngineConfig& c) { c.max_running_requests = INT64_MAX; }),
              HasSubstr("max_running_requests: expected 1 to 1048576"));
  EXPECT_THAT(refusal([](EngineConfig& c) { c.chunked_prefill_size = INT64_MAX; }),
              HasSubstr("chunked_prefill_size: expected 1 to 1048576"));
  EXPECT_THAT(refusal([](EngineConfig& c) { c.max_total_tokens = INT64_MAX; }),
              HasSubstr("max_total_tokens: expected 0 to 2147483647"));
  EXPECT_THAT(refusal([](EngineConfig& c) { c.context_length = 1 << 20; }),
              HasSubstr("context_length"));
  EXPECT_THAT(refusal([](EngineConfig& c) { c.fp4_gemm_backend = "nonsense"; }),
              HasSubstr("nonsense"));
  EXPECT_THAT(refusal([](EngineConfig& c) { c.model_path = "/nowhere"; }), HasSubstr("/nowhere"));
  EXPECT_THAT(refusal([](EngineConfig& c) { c.device = {Device::Kind::Cpu, 7}; }),
              HasSubstr("device"));
}

}  // namespace
}  // namespace nibble::engine
