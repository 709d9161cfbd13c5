#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/present.h"

namespace nibble::engine {
namespace {

using test::present;

const std::vector<float> kLogits{1.0f, 3.0f, 2.0f, 3.0f, -1.0f, 0.5f};

Sequence sequence_with(SamplingParams sampling) {
  Sequence sequence;
  sequence.request.sampling = std::move(sampling);
  sequence.tokens = {0};
  sequence.prompt_tokens = 1;
  return sequence;
}

DrawRequest drawn_by(const SamplingParams& sampling) {
  return present(draw_request(sequence_with(sampling)));
}

// Shares of tokens over many seeds.
std::map<int32_t, double> shares(const SamplingParams& sampling,
                                 std::span<const float> logits,
                                 int draws = 20000) {
  std::map<int32_t, double> share;
  Sequence sequence = sequence_with(sampling);
  for (int seed = 0; seed < draws; ++seed) {
    sequence.request.sampling.seed = static_cast<uint64_t>(seed);
    share[present(sample(logits, sequence, {}, {}).token)] += 1.0 / draws;
  }
  return share;
}

double softmax(std::span<const float> logits, int32_t token, double temperature = 1) {
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) / temperature);
  }
  return std::exp(static_cast<double>(logits[static_cast<size_t>(token)]) / temperature) / sum;
}

TEST(Sampler, GreedyTakesTheLowestIdAmongEquals) {
  Sequence sequence = sequence_with({.temperature = 0});
  EXPECT_EQ(sample(kLogits, sequence, {}, {}).token, 1);
  sequence = sequence_with({.temperature = 1, .top_k = 1});
  EXPECT_EQ(sample(kLogits, sequence, {}, {}).token, 1);
}

// Long rows are searched in blocks of lanes: borders, equals in other blocks, and what makes a row
// useless anywhere in it.
TEST(Sampler, GreedyFindsTheLargestAnywhereInALongRow) {
  const Sequence sequence = sequence_with({.temperature = 0});
  for (const size_t size : {size_t{1}, size_t{17}, size_t{1024}, size_t{1025}, size_t{5000}}) {
    for (const size_t at : {size_t{0}, size / 3, size / 2, size - 1}) {
      std::vector<float> logits(size, -2.0f);
      logits[at] = -1.0f;
      EXPECT_EQ(sample(logits, sequence, {}, {}).token, static_cast<int32_t>(at)) << size;
      logits[size - 1] = -1.0f;  // an equal one later
      EXPECT_EQ(sample(logits, sequence, {}, {}).token, static_cast<int32_t>(at)) << size;
      for (const float bad :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        logits[at] = bad;
        EXPECT_FALSE(sample(logits, sequence, {}, {}).token.has_value()) << size << " " << at;
      }
    }
    const std::vector<float> nothing(size, -std::numeric_limits<float>::infinity());
    EXPECT_FALSE(sample(nothing, sequence, {}, {}).token.has_value());
  }
}

TEST(Sampler, ADeviceMayDrawWhatNeedsNoAlternatives) {
  const DrawRequest greedy = drawn_by({.temperature = 0});
  EXPECT_EQ(greedy.greedy, 1);
  EXPECT_EQ(greedy.scale, 1.0);
  const DrawRequest drawn = drawn_by({.temperature = 0.5f, .seed = 3});
  EXPECT_EQ(drawn.greedy, 0);
  EXPECT_EQ(drawn.scale, 2.0);
  EXPECT_NE(drawn.unit, drawn_by({.temperature = 0.5f, .seed = 4}).unit);
  EXPECT_EQ(drawn.candidates, 0);
  for (const SamplingParams& sampling :
       {SamplingParams{.top_p = 0.9f}, SamplingParams{.top_k = 5}, SamplingParams{.min_p = 0.1f}}) {
    EXPECT_EQ(drawn_by(sampling).candidates, 1);
  }
  for (const SamplingParams& sampling : {SamplingParams{.frequency_penalty = 1},
                                         SamplingParams{.min_new_tokens = 1},
                                         SamplingParams{.logit_bias = {{1, 2.0f}}}}) {
    EXPECT_FALSE(draw_request(sequence_with(sampling)).has_value());
  }
  Sequence reports = sequence_with({.temperature = 0});
  reports.request.logprobs = {.output = true, .top = 2};
  EXPECT_FALSE(draw_request(reports).has_value());
}

TEST(Sampler, WhatADeviceDrewIsReportedAsTheHostWould) {
  Sequence sequence = sequence_with({.temperature = 0.5f, .seed = 9});
  sequence.request.logprobs.output = true;
  const Sampled want = sample(kLogits, sequence, {}, {});
  double total = 0;
  for (const float logit : kLogits) {
    total += std::exp(2.0 * static_cast<double>(logit));
  }
  const int32_t token = present(want.token);
  const DrawResult drawn{std::log(total), kLogits[static_cast<size_t>(token)], token};
  const DrawRequest request = present(draw_request(sequence));
  const Sampled got = present(sampled_from(request, drawn, {}, 6, sequence));
  EXPECT_EQ(got.token, token);
  EXPECT_NEAR(present(got.logprobs.token).logprob, present(want.logprobs.token).logprob, 1e-6);
  EXPECT_FALSE(present(sampled_from(request, {}, {}, 6, sequence)).token.has_value());
}

TEST(Sampler, CandidatesDecideAsTheWholeRowDoesOrSayThatTheyDoNot) {
  std::vector<float> logits(3000);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>((i * 7919) % 3000) / 250.0f;
  }
  double total = 0;
  for (const float logit : logits) {
    total += std::exp(static_cast<double>(logit));
  }
  std::vector<DrawCandidate> best;
  best.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    best.push_back({logits[i], static_cast<int32_t>(i)});
  }
  std::sort(
      best.begin(), best.end(), [](const auto& a, const auto& b) { return a.logit > b.logit; });
  best.resize(kDrawCandidates);
  std::reverse(best.begin(), best.end());  // they come in any order
  const DrawResult drawn{std::log(total), best.back().logit, best.back().token};
  int undecided = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (const SamplingParams& filter : {SamplingParams{.top_p = 0.3f},
                                         SamplingParams{.top_k = 40},
                                         SamplingParams{.top_k = 256},
                                         SamplingParams{.min_p = 0.5f},
                                         SamplingParams{.top_p = 0.99f}}) {
      Sequence sequence = sequence_with(filter);
      sequence.request.sampling.seed = seed;
      const auto got = sampled_from(present(draw_request(sequence)), drawn, best, 3000, sequence);
      if (filter.top_p == 0.99f) {
        undecided += got ? 0 : 1;
        continue;
      }
      ASSERT_TRUE(got.has_value());
      EXPECT_EQ(got->token, sample(logits, sequence, {}, {}).token);
    }
  }
  EXPECT_EQ(undecided, 50);
}

TEST(Sampler, LogitsThatAreNotFiniteGiveNoToken) {
  std::vector<float> logits = kLogits;
  logits[4] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(sample(logits, sequence_with({.temperature = 0}), {}, {}).token.has_value());
  logits[4] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(sample(logits, sequence_with({.temperature = 1}), {}, {}).token.has_value());
}

TEST(Sampler, DrawsFollowTheSoftmaxAtEveryTemperature) {
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    const auto share = shares({.temperature = temperature}, kLogits);
    for (int32_t token = 0; token < 6; ++token) {
      const double expected = softmax(kLogits, token, static_cast<double>(temperature));
      const auto found = share.find(token);
      EXPECT_NEAR(found == share.end() ? 0.0 : found->second, expected, 0.015) << token;
    }
  }
}

TEST(Sampler, FiltersKeepTheRightTokensAndTheirRatios) {
  const auto keys = [](const std::map<int32_t, double>& share) {
    std::vector<int32_t> tokens;
    tokens.reserve(share.size());
    for (const auto& [token, part] : share) {
      tokens.push_back(token);
    }
    return tokens;
  };
  const auto by_k = shares({.temperature = 1, .top_k = 3}, kLogits);
  EXPECT_THAT(keys(by_k), testing::ElementsAre(1, 2, 3));
  EXPECT_NEAR(by_k.at(1), softmax(std::vector<float>{3, 2, 3}, 0), 0.015);
  // Tokens 1 and 3 hold 0.38 each: 0.5 needs both, 0.8 also token 2.
  EXPECT_THAT(keys(shares({.temperature = 1, .top_p = 0.5f}, kLogits)), testing::ElementsAre(1, 3));
  EXPECT_THAT(keys(shares({.temperature = 1, .top_p = 0.8f}, kLogits)),
              testing::ElementsAre(1, 2, 3));
  // exp(-1) = 0.37 of the best passes 0.3, exp(-2) = 0.14 does not.
  EXPECT_THAT(keys(shares({.temperature = 1, .min_p = 0.3f}, kLogits)),
              testing::ElementsAre(1, 2, 3));
}

TEST(Sampler, ATokenDependsOnSeedAndPositionOnly) {
  Sequence sequence = sequence_with({.temperature = 1, .seed = 5});
  const auto first = sample(kLogits, sequence, {}, {}).token;
  EXPECT_EQ(sample(kLogits, sequence, {}, {}).token, first);
  std::map<int32_t, int> seen;
  for (int i = 0; i < 50; ++i) {
    ++seen[present(sample(kLogits, sequence, {}, {}).token)];
    sequence.tokens.push_back(1);  // the next position draws anew
  }
  EXPECT_GT(seen.size(), 1u);
}

TEST(Sampler, PenaltiesAndBiasChangeTheChoice) {
  Sequence sequence = sequence_with({.temperature = 0, .frequency_penalty = 0.6f});
  remember(sequence, 1);
  EXPECT_EQ(sample(kLogits, sequence, {}, {}).token, 3);
  sequence = sequence_with({.temperature = 0, .presence_penalty = 1.5f});
  remember(sequence, 1);
  remember(sequence, 3);
  EXPECT_EQ(sample(kLogits, sequence, {}, {}).token, 2);
  sequence = sequence_with({.temperature = 0, .repetition_penalty = 2.0f});
  sequence.tokens = {1, 3};  // prompt tokens count here
  EXPECT_EQ(sample(kLogits, sequence, {}, {}).token, 2);
  sequence = sequence_with({.temperature = 0, .logit_bias = {{4, 10.0f}}});
  EXPECT_EQ(sample(kLogits, sequence, {}, {}).token, 4);
}

TEST(Sampler, RepetitionPenaltyMakesNegativeLogitsMoreNegative) {
  const std::vector<float> logits{-1.0f, -1.5f};
  Sequence sequence = sequence_with({.temperature = 0, .repetition_penalty = 2.0f});
  sequence.tokens = {0};
  EXPECT_EQ(sample(logits, sequence, {}, {}).token, 1);
}

TEST(Sampler, ATinyRepetitionPenaltyIsNotTakenForABrokenModel) {
  for (const float temperature : {0.0f, 1.0f}) {
    Sequence sequence = sequence_with({.temperature = temperature, .repetition_penalty = 1e-44f});
    sequence.tokens = {2, 5};
    EXPECT_EQ(sample(kLogits, sequence, {}, {}).token, 2);
    std::vector<float> broken = kLogits;
    broken[2] = std::numeric_limits<float>::infinity();
    EXPECT_FALSE(sample(broken, sequence, {}, {}).token.has_value());
  }
}

TEST(Sampler, MinNewTokensHoldsStopTokensBack) {
  Sequence sequence = sequence_with({.temperature = 0, .min_new_tokens = 1, .stop_token_ids = {3}});
  const std::vector<int32_t> eos{1};
  EXPECT_EQ(sample(kLogits, sequence, {}, eos).token, 2);
  sequence.tokens.push_back(2);
  EXPECT_EQ(sample(kLogits, sequence, {}, eos).token, 1);
}

TEST(Sampler, AMaskRulesTokensOut) {
  const std::vector<uint32_t> allowed{0b110001};
  EXPECT_EQ(sample(kLogits, sequence_with({.temperature = 0}), allowed, {}).token, 0);
  Sequence sampled = sequence_with({.temperature = 5});
  for (uint64_t seed = 0; seed < 200; ++seed) {
    sampled.request.sampling.seed = seed;
    EXPECT_THAT(present(sample(kLogits, sampled, allowed, {}).token), testing::AnyOf(0, 4, 5));
  }
}

TEST(Sampler, LogprobsAreThoseOfTheScaledLogits) {
  Sequence sequence = sequence_with({.temperature = 2, .top_k = 2, .seed = 3});
  sequence.request.logprobs = {.output = true, .top = 3, .token_ids = {4}};
  const Sampled sampled = sample(kLogits, sequence, {}, {});
  // Filters do not show in logprobs, temperature does.
  EXPECT_NEAR(static_cast<double>(present(sampled.logprobs.token).logprob),
              std::log(softmax(kLogits, present(sampled.token), 2)),
              1e-6);
  ASSERT_EQ(sampled.logprobs.top.size(), 3u);
  EXPECT_EQ(sampled.logprobs.top[0].token, 1);
  EXPECT_EQ(sampled.logprobs.top[1].token, 3);
  EXPECT_EQ(sampled.logprobs.top[2].token, 2);
  ASSERT_EQ(sampled.logprobs.chosen.size(), 1u);
  EXPECT_NEAR(static_cast<double>(sampled.logprobs.chosen[0].logprob),
              std::log(softmax(kLogits, 4, 2)),
              1e-6);
}

TEST(Sampler, GreedyLogprobsAreNotScaled) {
  Sequence sequence = sequence_with({.temperature = 0});
  sequence.request.logprobs.output = true;
  const Sampled sampled = sample(kLogits, sequence, {}, {});
  EXPECT_NEAR(static_cast<double>(present(sampled.logprobs.token).logprob),
              std::log(softmax(kLogits, 1)),
              1e-6);
}

TEST(Sampler, PromptLogprobsAreThoseOfTheNextToken) {
  const PositionLogprobs found = prompt_logprobs(kLogits, 5, {.top = 1});
  EXPECT_NEAR(
      static_cast<double>(present(found.token).logprob), std::log(softmax(kLogits, 5)), 1e-6);
  EXPECT_EQ(found.top.size(), 1u);
}

}  // namespace
}  // namespace nibble::engine
