// Weight updates, pauses, flushes and memory release, over tiny models with really different
// weights.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "support/checkpoint_edit.h"
#include "support/data_dir.h"
#include "support/engine_harness.h"
#include "support/temp_dir.h"

namespace nibble::engine {
namespace {

using test::Answer;
using test::generate;
using test::greedy_request;
using test::logprob_bits;
using test::Pending;
using testing::HasSubstr;

std::vector<int32_t> prompt(int32_t length) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < length; ++i) {
    tokens.push_back((i * 37 + 11) % 512);
  }
  return tokens;
}

Request probe(int32_t length = 40) {
  Request request = greedy_request(prompt(length), 16);
  request.logprobs.output = true;
  return request;
}

// generation_config.json has the last word on end tokens.
void set_eos(const std::string& directory, int32_t token) {
  std::ofstream(directory + "/generation_config.json") << "{\"eos_token_id\": " << token << "}";
}

class Lifecycle : public testing::Test {
 protected:
  Lifecycle() : a_(test::data_path("golden/llama-nvfp4")) {
    test::CheckpointEdit edit(a_);
    edit.scale("input_layernorm", 1.5f);
    edit.scale("o_proj.weight_scale_2", 0.5f);
    edit.write(b_.path());
    engine_ = test::start_engine(config(a_));
  }
  static EngineConfig config(const std::string& directory) { return test::tiny_config(directory); }
  static Answer fresh(const std::string& directory) {
    const auto engine = test::start_engine(config(directory));
    return generate(*engine, probe());
  }
  Result<WeightUpdateReport> update(const std::string& directory,
                                    RunningPolicy running = RunningPolicy::Wait,
                                    bool flush = true) {
    WeightUpdate update;
    update.model_path = directory;
    update.running = running;
    update.flush_cache = flush;
    return engine_->update_weights(update);
  }
  static void expect_same(const Answer& a, const Answer& b) {
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(logprob_bits(a), logprob_bits(b));
  }

  std::string a_;
  test::TempDir b_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(Lifecycle, ReloadingTheSameCheckpointChangesNoBit) {
  const Answer before = generate(*engine_, probe());
  for (const bool flush : {true, false}) {
    ASSERT_TRUE(update(a_, RunningPolicy::Wait, flush).has_value());
    expect_same(generate(*engine_, probe()), before);
  }
}

TEST_F(Lifecycle, AnotherCheckpointEqualsAFreshStartOnItAndTheWayBackRestoresTheFirst) {
  const Answer a = generate(*engine_, probe());
  ASSERT_TRUE(update(b_.path()).has_value());
  const Answer b = generate(*engine_, probe());
  expect_same(b, fresh(b_.path()));
  EXPECT_NE(a.tokens, b.tokens) << "the two checkpoints must differ for this test to mean anything";
  ASSERT_TRUE(update(a_).has_value());
  expect_same(generate(*engine_, probe()), a);
}

TEST_F(Lifecycle, WithoutAFlushNoPrefixOfOldWeightsIsReused) {
  const Answer expected = fresh(b_.path());
  generate(*engine_, probe());
  EXPECT_GT(generate(*engine_, probe()).last.cached_tokens, 0);
  ASSERT_TRUE(update(b_.path(), RunningPolicy::Wait, false).has_value());
  const Answer after = generate(*engine_, probe());
  EXPECT_EQ(after.last.cached_tokens, 0);
  expect_same(after, expected);
  EXPECT_GT(generate(*engine_, probe()).last.cached_tokens, 0);
}

TEST_F(Lifecycle, VersionsAndPathsAreReported) {
  EXPECT_EQ(engine_->weights().weight_version, "default");
  WeightUpdate named;
  named.model_path = b_.path();
  named.weight_version = "step-7";
  EXPECT_EQ(engine_->update_weights(named)->weight_version, "step-7");
  EXPECT_EQ(engine_->weights().model_path, b_.path());
  EXPECT_EQ(engine_->weights().num_updates, 1);
  EXPECT_EQ(generate(*engine_, probe()).last.weight_version, "step-7");
  ASSERT_TRUE(engine_->set_weight_version("renamed").has_value());
  EXPECT_EQ(generate(*engine_, probe()).last.weight_version, "renamed");
}

TEST_F(Lifecycle, WaitLetsRunningRequestsFinishOnTheirWeights) {
  const Answer a = generate(*engine_, greedy_request(prompt(30), 120));
  Pending running(*engine_, greedy_request(prompt(30), 120));
  running.wait_for_tokens(2);
  ASSERT_TRUE(update(b_.path()).has_value());
  const Answer answer = running.wait();
  EXPECT_EQ(answer.tokens, a.tokens);
  EXPECT_THAT(answer.versions, testing::Each("default"));
}

TEST_F(Lifecycle, AbortEndsRunningRequestsAndCommitsAtOnce) {
  Pending running(*engine_, greedy_request(prompt(30), 1500));
  running.wait_for_tokens(2);
  ASSERT_TRUE(update(b_.path(), RunningPolicy::Abort).has_value());
  EXPECT_EQ(running.wait().last.finish, FinishReason::Abort);
}

TEST_F(Lifecycle, SwapHappensBetweenTwoTokensAndEachTokenNamesItsWeights) {
  Pending running(*engine_, greedy_request(prompt(30), 400));
  running.wait_for_tokens(2);
  ASSERT_TRUE(update(b_.path(), RunningPolicy::Swap).has_value());
  const Answer answer = running.wait();
  EXPECT_EQ(answer.tokens.size(), 400u);
  EXPECT_EQ(answer.versions.front(), "default");
  EXPECT_EQ(answer.versions.back(), "update-1");
  // Its pages mix both weights: they must not be found by anybody.
  expect_same(generate(*engine_, probe(30)), [this] {
    const auto engine = test::start_engine(config(b_.path()));
    return generate(*engine, probe(30));
  }());
}

TEST_F(Lifecycle, ABadCheckpointIsRefusedByNameAndChangesNothing) {
  const Answer before = generate(*engine_, probe());
  const auto refusal = [&](auto&& change) {
    test::TempDir bad;
    test::CheckpointEdit edit(b_.path());
    change(edit);
    edit.write(bad.path());
    const Result<WeightUpdateReport> result = update(bad.path());
    return result ? std::string("accepted") : result.error().text();
  };
  const std::string down = "model.layers.1.mlp.down_proj";
  EXPECT_THAT(refusal([&](auto& e) { e.tensors.erase(down + ".weight"); }), HasSubstr(down));
  EXPECT_THAT(refusal([&](auto& e) { e.tensors.erase("model.norm.weight"); }),
              HasSubstr("model.norm.weight"));
  EXPECT_THAT(refusal([&](auto& e) {
                auto node = e.tensors.extract(down + ".weight_scale");
                node.key() = down + ".weight_scales";
                e.tensors.insert(std::move(node));
              }),
              HasSubstr(down));
  EXPECT_THAT(refusal([&](auto& e) { e.tensors[down + ".weight_scale"].dtype = DType::I8; }),
              HasSubstr(down + ".weight_scale"));
  EXPECT_THAT(refusal([&](auto& e) {
                e.tensors[down + ".weight_scale"].data[5] = std::byte{0x7F};  // NaN
              }),
              HasSubstr(down + ".weight_scale"));
  EXPECT_THAT(refusal([&](auto& e) {
                const float nan = std::numeric_limits<float>::quiet_NaN();
                std::memcpy(e.tensors[down + ".weight_scale_2"].data.data(), &nan, 4);
              }),
              HasSubstr(down + ".weight_scale_2"));
  EXPECT_THAT(refusal([&](auto& e) {
                e.tensors["model.norm.weight"].data[1] = std::byte{0x7F};  // infinity or NaN
                e.tensors["model.norm.weight"].data[0] = std::byte{0x80};
              }),
              HasSubstr("model.norm.weight"));
  EXPECT_THAT(update("/nowhere").error().text(), HasSubstr("/nowhere"));
  EXPECT_THAT(update(test::data_path("golden/smollm2")).error().text(), HasSubstr("config.json"));
  EXPECT_EQ(engine_->weights().num_updates, 0);
  EXPECT_EQ(engine_->weights().model_path, a_);
  expect_same(generate(*engine_, probe()), before);
}

TEST_F(Lifecycle, ATruncatedFileIsRefusedAndChangesNothing) {
  const Answer before = generate(*engine_, probe());
  const std::string file = b_.file("model.safetensors");
  std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  const Result<WeightUpdateReport> result = update(b_.path());
  ASSERT_FALSE(result.has_value());
  EXPECT_THAT(result.error().text(), HasSubstr("model.safetensors"));
  expect_same(generate(*engine_, probe()), before);
}

TEST_F(Lifecycle, AFileOverwrittenAfterTheLoadDoesNotReachTheWeights) {
  test::TempDir copy;
  copy.copy_from(a_);
  const auto engine = test::start_engine(config(copy.path()));
  const Answer before = generate(*engine, probe());
  std::filesystem::resize_file(copy.file("model.safetensors"), 100);
  expect_same(generate(*engine, probe()), before);
}

TEST_F(Lifecycle, ManyUpdatesUnderLoadLoseNoRequestAndServeNoStaleToken) {
  const Answer a = fresh(a_);
  const Answer b = fresh(b_.path());
  std::atomic<bool> stop{false};
  std::atomic<int> finished{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      while (!stop) {
        const Answer answer = generate(*engine_, probe());
        // Every answer is wholly of one checkpoint: updates wait for it.
        EXPECT_TRUE(answer.tokens == a.tokens || answer.tokens == b.tokens);
        ++finished;
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    const bool to_b = i % 2 == 0;
    ASSERT_TRUE(update(to_b ? b_.path() : a_, RunningPolicy::Wait, i % 3 == 0).has_value());
    expect_same(generate(*engine_, probe()), to_b ? b : a);
  }
  stop = true;
  for (std::thread& client : clients) {
    client.join();
  }
  EXPECT_GT(finished, 0);
  EXPECT_EQ(engine_->load().used_tokens, 0);
}

// ---- pause ----

TEST_F(Lifecycle, PauseHoldsNewRequestsUntilResume) {
  ASSERT_TRUE(engine_->pause(PauseMode::Abort).has_value());
  EXPECT_EQ(engine_->weights().state, EngineState::Paused);
  Pending held(*engine_, probe());
  ASSERT_TRUE(update(b_.path()).has_value());  // does not wait for held requests
  ASSERT_TRUE(engine_->resume().has_value());
  expect_same(held.wait(), fresh(b_.path()));
}

TEST_F(Lifecycle, AbortPauseEndsRunningRequests) {
  Pending running(*engine_, greedy_request(prompt(10), 1500));
  running.wait_for_tokens(1);
  ASSERT_TRUE(engine_->pause(PauseMode::Abort).has_value());
  EXPECT_EQ(running.wait().last.finish, FinishReason::Abort);
}

TEST_F(Lifecycle, RetractAndInPlacePausesDoNotChangeABit) {
  const Answer undisturbed = generate(*engine_, greedy_request(prompt(30), 100));
  for (const PauseMode mode : {PauseMode::Retract, PauseMode::InPlace}) {
    Pending running(*engine_, greedy_request(prompt(30), 100));
    running.wait_for_tokens(5);
    ASSERT_TRUE(engine_->pause(mode).has_value());
    ASSERT_TRUE(engine_->resume().has_value());
    EXPECT_EQ(running.wait().tokens, undisturbed.tokens);
  }
}

TEST_F(Lifecycle, RetractedRequestsDoNotStandInTheWayOfAFlushAndFrozenOnesDo) {
  Pending running(*engine_, greedy_request(prompt(30), 300));
  running.wait_for_tokens(5);
  ASSERT_TRUE(engine_->pause(PauseMode::InPlace).has_value());
  const Result<void> frozen = engine_->flush_cache(0);
  ASSERT_FALSE(frozen.has_value());
  EXPECT_EQ(frozen.error().code, ErrorCode::WrongState);
  ASSERT_TRUE(engine_->pause(PauseMode::Retract).has_value());
  EXPECT_TRUE(engine_->flush_cache(0).has_value());
  ASSERT_TRUE(engine_->resume().has_value());
  EXPECT_EQ(running.wait().tokens.size(), 300u);
}

TEST_F(Lifecycle, FlushDropsEveryPrefix) {
  generate(*engine_, probe());
  ASSERT_TRUE(engine_->flush_cache(1).has_value());
  EXPECT_EQ(generate(*engine_, probe()).last.cached_tokens, 0);
}

// ---- memory ----

TEST_F(Lifecycle, ReleaseResumeUpdateServesTheSameBits) {
  const Answer before = generate(*engine_, probe());
  ASSERT_TRUE(engine_->release_memory({}).has_value());
  EXPECT_EQ(engine_->weights().state, EngineState::Released);
  Request refused = probe();
  refused.sink = [](Output&&) {};
  EXPECT_EQ(engine_->submit(std::move(refused)).error().code, ErrorCode::Overloaded);
  EXPECT_EQ(update(a_).error().code, ErrorCode::WrongState);  // no memory to put them in
  ASSERT_TRUE(engine_->resume_memory({MemoryTag::Weights}).has_value());
  ASSERT_TRUE(update(a_).has_value());
  ASSERT_TRUE(engine_->resume_memory({MemoryTag::KvCache, MemoryTag::CudaGraph}).has_value());
  EXPECT_EQ(engine_->weights().state, EngineState::Serving);
  expect_same(generate(*engine_, probe()), before);
}

TEST_F(Lifecycle, ResumedWeightsNeedAnUpdateFirst) {
  ASSERT_TRUE(engine_->release_memory({MemoryTag::Weights}).has_value());
  ASSERT_TRUE(engine_->resume_memory({}).has_value());
  EXPECT_EQ(engine_->weights().state, EngineState::NeedsWeights);
  Request refused = probe();
  refused.sink = [](Output&&) {};
  const Result<RequestId> result = engine_->submit(std::move(refused));
  ASSERT_FALSE(result.has_value());
  EXPECT_THAT(result.error().text(), HasSubstr("needs-weights"));
  ASSERT_TRUE(update(b_.path()).has_value());
  expect_same(generate(*engine_, probe()), fresh(b_.path()));
}

TEST_F(Lifecycle, AnUpdateDoesNotWaitForRequestsThatHaveNoWeights) {
  // "wait" would wait for ever: the request needs the weights that the update brings.
  Pending retracted(*engine_, greedy_request(prompt(10), 40));
  retracted.wait_for_tokens(3);
  ASSERT_TRUE(engine_->pause(PauseMode::Retract).has_value());
  ASSERT_TRUE(engine_->release_memory({MemoryTag::Weights}).has_value());
  ASSERT_TRUE(engine_->resume().has_value());
  ASSERT_TRUE(engine_->resume_memory({MemoryTag::Weights}).has_value());
  EXPECT_EQ(engine_->weights().state, EngineState::NeedsWeights);
  EXPECT_FALSE(engine_->weight_checksums().has_value());
  ASSERT_TRUE(update(b_.path()).has_value());
  EXPECT_EQ(retracted.wait().tokens.size(), 40u);
  expect_same(generate(*engine_, probe()), fresh(b_.path()));
}

TEST_F(Lifecycle, AnUpdateDoesNotWaitForRequestsWithoutCacheMemory) {
  Pending retracted(*engine_, greedy_request(prompt(10), 40));
  retracted.wait_for_tokens(3);
  ASSERT_TRUE(engine_->pause(PauseMode::Retract).has_value());
  ASSERT_TRUE(engine_->release_memory({MemoryTag::KvCache}).has_value());
  ASSERT_TRUE(engine_->resume().has_value());
  ASSERT_TRUE(update(b_.path()).has_value());
  ASSERT_TRUE(engine_->resume_memory({}).has_value());
  EXPECT_EQ(retracted.wait().tokens.size(), 40u);
}

TEST_F(Lifecycle, EndTokensComeWithTheWeights) {
  const auto answer = [&](bool ignore_eos) {
    Request request = greedy_request(prompt(10), 12);
    request.sampling.ignore_eos = ignore_eos;
    return generate(*engine_, std::move(request));
  };
  const std::vector<int32_t> all = answer(true).tokens;
  ASSERT_EQ(all.size(), 12u);
  const int32_t end = all[4];
  const auto first = static_cast<size_t>(std::find(all.begin(), all.end(), end) - all.begin());
  test::TempDir other;
  test::CheckpointEdit(a_).write(other.path());
  set_eos(other.path(), end);
  ASSERT_TRUE(update(other.path()).has_value());
  const Answer stopped = answer(false);
  EXPECT_EQ(stopped.tokens.size(), first + 1);
  EXPECT_EQ(stopped.last.finish, FinishReason::StopToken);
  ASSERT_TRUE(update(a_).has_value());
  EXPECT_EQ(answer(false).tokens, all);
}

TEST_F(Lifecycle, WrongMovesSayTheStateAndWhatIsPossible) {
  const auto text = [](const Result<void>& result) {
    return result ? std::string("accepted") : result.error().text();
  };
  EXPECT_THAT(text(engine_->resume_memory({})), HasSubstr("state serving"));
  ASSERT_TRUE(engine_->release_memory({MemoryTag::KvCache}).has_value());
  EXPECT_THAT(text(engine_->release_memory({MemoryTag::KvCache})),
              testing::AllOf(HasSubstr("state released (kv_cache released)"),
                             HasSubstr("possible now: resume memory")));
  EXPECT_THAT(text(engine_->resume_memory({MemoryTag::Weights})), HasSubstr("not released"));
  EXPECT_THAT(text(engine_->pause(PauseMode::Abort)), HasSubstr("state released"));
  ASSERT_TRUE(engine_->resume_memory({MemoryTag::KvCache}).has_value());
  Pending running(*engine_, greedy_request(prompt(10), 1500));
  running.wait_for_tokens(1);
  EXPECT_THAT(text(engine_->release_memory({})), HasSubstr("while requests run"));
  engine_->abort_all();
  running.wait();
}

TEST_F(Lifecycle, ChecksumsFollowTheWeights) {
  const auto sums = [&] {
    std::string all;
    const std::vector<WeightChecksum> found = engine_->weight_checksums().value();
    for (const WeightChecksum& sum : found) {
      EXPECT_EQ(sum.hex.size(), 16u);
      all += sum.name + "=" + sum.hex + "\n";
    }
    return all;
  };
  const std::string of_a = sums();
  EXPECT_THAT(of_a, HasSubstr("model.layers.0.self_attn.qkv_proj="));
  EXPECT_THAT(of_a, testing::Not(HasSubstr("rope")));
  ASSERT_TRUE(update(b_.path()).has_value());
  EXPECT_NE(sums(), of_a);
  ASSERT_TRUE(update(a_).has_value());
  EXPECT_EQ(sums(), of_a);
}

}  // namespace
}  // namespace nibble::engine
