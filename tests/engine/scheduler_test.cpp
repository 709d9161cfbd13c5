#include "engine/scheduler.h"

#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"

namespace nibble::engine {
namespace {

constexpr KvGeometry kGeometry{1, 1, 8, 4};

struct World {
  explicit World(int64_t pages, SchedulerLimits limits = {})
      : pool(kGeometry, pages), cache(4), scheduler(limits, pool, cache) {}

  Sequence* add(std::vector<int32_t> prompt, int32_t max_new, int64_t prompt_start = -1) {
    auto sequence = std::make_unique<Sequence>();
    sequence->request.id = ++last_id;
    sequence->request.sampling.max_new_tokens = max_new;
    sequence->request.logprobs.prompt_start = prompt_start;
    sequence->prompt_logprobs_done = prompt_start < 0;
    sequence->tokens = std::move(prompt);
    sequence->prompt_tokens = sequence->num_tokens();
    sequence->max_tokens =
        std::min(sequence->prompt_tokens + max_new, pool.num_pages() * pool.page_size());
    Sequence* raw = sequence.get();
    scheduler.add(std::move(sequence));
    return raw;
  }

  // A step in which each sampling slice gets the token that `next` says.
  std::vector<StepResult> step(int32_t token = 1) {
    batch = scheduler.next();
    if (!batch) {
      return {};
    }
    std::vector<std::optional<int32_t>> sampled;
    for (const Slice& slice : batch->slices) {
      sampled.push_back(slice.samples ? std::optional(token) : std::nullopt);
    }
    std::vector<StepResult> results = scheduler.commit(*batch, sampled);
    scheduler.check_integrity();
    return results;
  }

  // Steps until idle; returns the ids in the order they finished.
  std::vector<RequestId> finish_all(int limit = 10000) {
    std::vector<RequestId> order;
    while (!scheduler.idle() && limit-- > 0) {
      for (const StepResult& result : step()) {
        if (result.finished != nullptr) {
          order.push_back(result.finished->id());
        }
      }
    }
    EXPECT_GT(limit, 0) << "the scheduler did not come to an end";
    return order;
  }

  KvPool pool;
  PrefixCache cache;
  Scheduler scheduler;
  std::optional<Batch> batch;
  RequestId last_id = 0;
};

std::vector<int32_t> prompt(int64_t length, int32_t first = 10) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < length; ++i) {
    tokens.push_back(first + static_cast<int32_t>(i));
  }
  return tokens;
}

TEST(Scheduler, CutsPromptsIntoChunksAndSamplesAfterTheLast) {
  World world(16, {.max_step_tokens = 6});
  world.add(prompt(14), 2);
  std::vector<int64_t> counts;
  std::vector<bool> samples;
  while (!world.scheduler.idle()) {
    world.step();
    counts.push_back(world.batch->slices[0].count);
    samples.push_back(world.batch->slices[0].samples);
  }
  EXPECT_THAT(counts, testing::ElementsAre(6, 6, 2, 1));
  EXPECT_THAT(samples, testing::ElementsAre(false, false, true, true));
}

TEST(Scheduler, PrefillAndDecodeNeverShareAStepAndAlternate) {
  World world(64, {.max_step_tokens = 4});
  world.add(prompt(3), 20);
  world.step();
  world.add(prompt(40, 100), 2);
  std::vector<bool> decode;
  for (int i = 0; i < 6; ++i) {
    world.step();
    decode.push_back(world.batch->decode);
  }
  EXPECT_THAT(decode, testing::ElementsAre(true, false, true, false, true, false));
}

TEST(Scheduler, FinishesByLengthAndByStopToken) {
  World world(16);
  world.scheduler.set_eos({7});
  world.add(prompt(3), 2);
  EXPECT_EQ(world.step(1)[0].finish, FinishReason::None);
  EXPECT_EQ(world.step(7)[0].finish, FinishReason::Length);  // length goes first

  world.add(prompt(3), 9);
  world.step(1);
  const std::vector<StepResult> results = world.step(7);
  EXPECT_EQ(results[0].finish, FinishReason::StopToken);
  EXPECT_EQ(results[0].matched_token, 7);

  world.add(prompt(3), 3)->request.sampling.ignore_eos = true;
  EXPECT_EQ(world.step(7)[0].finish, FinishReason::None);
}

TEST(Scheduler, ZeroNewTokensMeansPrefillOnly) {
  World world(16);
  world.add(prompt(3), 0);
  const std::vector<StepResult> results = world.step();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].finish, FinishReason::Length);
  EXPECT_FALSE(results[0].token.has_value());
}

TEST(Scheduler, AdmitsInOrderAndOnlyWhatFits) {
  World world(8, {.prefix_cache = false});  // 32 tokens
  world.add(prompt(16), 4);
  world.add(prompt(20, 50), 4);  // does not fit beside the first
  world.add(prompt(2, 90), 2);   // would fit, but waits its turn
  world.step();
  EXPECT_EQ(world.scheduler.num_running(), 1);
  EXPECT_EQ(world.scheduler.num_waiting(), 2);
  EXPECT_THAT(world.finish_all(), testing::ElementsAre(1, 3, 2));
  EXPECT_EQ(world.pool.free_pages(), 8);
}

TEST(Scheduler, RespectsTheLimitOfRunningRequests) {
  World world(64, {.max_running = 2});
  for (int i = 0; i < 5; ++i) {
    world.add(prompt(3), 4);
  }
  while (!world.scheduler.idle()) {
    world.step();
    EXPECT_LE(world.scheduler.num_running(), 2);
  }
}

TEST(Scheduler, RetractsTheOneWithTheFewestTokensAndFinishesAll) {
  World world(8, {.reserve = 0, .prefix_cache = false});
  world.add(prompt(4), 20);
  world.step();
  world.step();
  world.add(prompt(4, 50), 20);
  world.finish_all();
  EXPECT_GT(world.scheduler.num_retractions(), 0);
  EXPECT_EQ(world.pool.free_pages(), 8);
}

TEST(Scheduler, ARetractedRequestKeepsItsTokensAndRecomputesThem) {
  World world(8, {.reserve = 0, .prefix_cache = false});
  world.add(prompt(4), 24);
  Sequence* second = world.add(prompt(4, 50), 24);
  while (second->num_retractions == 0) {
    world.step();
  }
  const std::vector<int32_t> kept = second->tokens;
  EXPECT_GT(second->num_generated(), 0);
  EXPECT_TRUE(second->pages.empty());
  while (second->pages.empty()) {
    world.step();
  }
  EXPECT_TRUE(std::equal(kept.begin(), kept.end(), second->tokens.begin()));
  world.finish_all();
}

TEST(Scheduler, ReplayByDecodeNeverPrefillsGeneratedTokens) {
  World world(8, {.reserve = 0, .prefix_cache = false, .replay_by_decode = true});
  world.add(prompt(4), 24);
  world.add(prompt(4, 50), 24);
  while (!world.scheduler.idle()) {
    world.step();
    for (const Slice& slice : world.batch->slices) {
      // Finished sequences are gone; what is left of their slice are numbers.
      EXPECT_TRUE(world.batch->decode || slice.begin + slice.count <= 4);
    }
  }
  EXPECT_GT(world.scheduler.num_retractions(), 0);
}

TEST(Scheduler, ReusesACachedPrefixButComputesTheLastToken) {
  World world(16);
  world.add(prompt(12), 1);
  world.finish_all();
  EXPECT_EQ(world.cache.num_pages(), 3);
  Sequence* again = world.add(prompt(12), 1);
  world.batch = world.scheduler.next();
  EXPECT_EQ(again->cached_tokens, 8);  // 12 would leave nothing to compute
  EXPECT_EQ(world.batch->slices[0].begin, 8);
}

TEST(Scheduler, PromptLogprobsLimitPrefixReuse) {
  World world(16);
  world.add(prompt(12), 1);
  world.finish_all();
  Sequence* all = world.add(prompt(12), 1, 0);
  world.step();
  Sequence* late = world.add(prompt(12), 1, 6);  // logits from position 5 on
  world.batch = world.scheduler.next();
  EXPECT_EQ(late->cached_tokens, 4);
  static_cast<void>(all);
}

TEST(Scheduler, PagesOfOtherWeightsAreNotReused) {
  World world(16);
  world.add(prompt(12), 1);
  world.finish_all();
  world.scheduler.set_weights_serial(1);
  Sequence* again = world.add(prompt(12), 1);
  world.step();
  EXPECT_EQ(world.last_id, 2u);
  EXPECT_EQ(world.cache.num_pages(), 6);  // both versions
  static_cast<void>(again);
}

TEST(Scheduler, EvictsCachedPagesWhenARequestNeedsThem) {
  World world(8);
  world.add(prompt(28), 1);
  world.finish_all();
  EXPECT_EQ(world.pool.free_pages(), 1);
  world.add(prompt(28, 100), 1);
  world.finish_all();
  EXPECT_EQ(world.pool.free_pages() + world.cache.num_pages(), 8);
}

TEST(Scheduler, RemovalFreesEverything) {
  World world(16);
  world.add(prompt(12), 9);
  world.add(prompt(12, 50), 9);
  world.step();
  world.step();
  EXPECT_NE(world.scheduler.remove(1), nullptr);
  EXPECT_EQ(world.scheduler.remove(1), nullptr);
  world.scheduler.check_integrity();
  EXPECT_EQ(world.scheduler.remove_all().size(), 1u);
  world.scheduler.check_integrity();
  EXPECT_EQ(world.pool.free_pages() + world.cache.num_pages(), 16);
}

// Takes the token of every slice that still counts.
std::vector<StepResult> land(World& world, const Batch& batch, int32_t token = 1) {
  std::vector<std::optional<int32_t>> sampled(batch.slices.size(), token);
  std::vector<StepResult> results = world.scheduler.commit(batch, sampled);
  world.scheduler.check_integrity();
  return results;
}

TEST(SchedulerAhead, GoesOnWithAllButThoseThatEndByLength) {
  World world(32);
  world.add(prompt(6), 9);
  world.add(prompt(3, 50), 2);
  world.step();  // both prompts: one token each
  const auto first = world.scheduler.next();
  ASSERT_TRUE(first && first->decode);
  const auto second = world.scheduler.next_after(*first);
  ASSERT_TRUE(second.has_value());
  ASSERT_EQ(second->slices.size(), 1u);  // the other has its second token then
  EXPECT_EQ(second->slices[0].sequence, first->slices[0].sequence);
  EXPECT_EQ(second->slices[0].begin, first->slices[0].begin + 1);
  EXPECT_TRUE(second->slices[0].samples);
  EXPECT_NE(land(world, *first)[1].finished, nullptr);
  EXPECT_EQ(land(world, *second)[0].sequence->num_generated(), 3);
  const auto third = world.scheduler.next();
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(third->slices[0].begin, second->slices[0].begin + 1);
}

TEST(SchedulerAhead, ASequenceThatEndedIsPassedOver) {
  World world(32);
  world.scheduler.set_eos({7});
  world.add(prompt(6), 9);
  world.add(prompt(3, 50), 9);
  world.step();
  const auto first = world.scheduler.next();
  auto second = world.scheduler.next_after(*first);
  ASSERT_TRUE(second && second->slices.size() == 2u);
  std::vector<StepResult> results =
      world.scheduler.commit(*first, std::vector<std::optional<int32_t>>{7, 1});
  EXPECT_EQ(results[0].finish, FinishReason::StopToken);
  second->slices[0].sequence = nullptr;
  const auto third = world.scheduler.next_after(*second);
  ASSERT_TRUE(third && third->slices.size() == 1u);
  results = land(world, *second);
  EXPECT_EQ(results[0].sequence, nullptr);
  EXPECT_EQ(results[1].sequence->num_generated(), 3);
}

TEST(SchedulerAhead, StopsWhereThereIsMoreToDecide) {
  SchedulerLimits limits;
  limits.max_running = 2;
  World world(8, limits);
  world.add(prompt(6), 12);
  const auto prefill = world.scheduler.next();
  EXPECT_FALSE(world.scheduler.next_after(*prefill).has_value());  // a prompt
  land(world, *prefill);
  const auto first = world.scheduler.next();
  world.add(prompt(4, 50), 4);
  EXPECT_FALSE(world.scheduler.next_after(*first).has_value());  // it could be admitted
  land(world, *first);
  world.step();  // its prompt
  const auto both = world.scheduler.next();
  ASSERT_EQ(both->slices.size(), 2u);
  world.add(prompt(4, 90), 4);  // no third runs, but nobody has found out yet
  EXPECT_FALSE(world.scheduler.next_after(*both).has_value());
  land(world, *both);
  const auto full = world.scheduler.next();
  ASSERT_TRUE(full && full->decode);
  EXPECT_TRUE(world.scheduler.next_after(*full).has_value());
}

TEST(SchedulerAhead, NeverRetracts) {
  World world(4);  // 16 tokens
  world.add(prompt(6), 8);
  world.add(prompt(6, 50), 8);
  world.step();
  int ahead = 0;
  for (auto batch = world.scheduler.next(); batch && world.scheduler.num_running() == 2;
       batch = world.scheduler.next()) {
    const auto next = world.scheduler.next_after(*batch);
    land(world, *batch);
    ahead += next ? 1 : 0;
    if (next) {
      land(world, *next);
    }
    EXPECT_EQ(world.scheduler.num_retractions(), 0);
    if (!next) {
      break;
    }
  }
  EXPECT_EQ(ahead, 1);  // eight tokens each fill both pages; a third page is not there
}

TEST(SchedulerAhead, EveryRequestOfRandomHistoriesGetsItsOwnTokens) {
  // A token is a function of the request and its place, so the whole answer is known.
  const auto token_of = [](RequestId id, int64_t place) {
    return static_cast<int32_t>(random_u64(id, static_cast<uint64_t>(place)) % 13);
  };
  constexpr int32_t kEnd = 3;
  int steps_ahead = 0;
  int passed_over = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    uint64_t counter = 0;
    const auto pick = [&](uint64_t below) {
      return static_cast<int32_t>(random_u64(seed, counter++) % below);
    };
    World world(14 + pick(12),
                {.max_running = 2 + pick(6),
                 .max_step_tokens = 1 + pick(20),
                 .prefix_cache = pick(3) != 0,
                 .replay_by_decode = pick(2) == 0});
    world.scheduler.set_eos({kEnd});
    std::optional<Batch> flying;
    for (int round = 0; round < 300; ++round) {
      if (!flying && round < 200 && pick(4) == 0 && world.scheduler.num_waiting() < 6) {
        world.add(prompt(1 + pick(20), pick(3) * 5), 1 + pick(20));
      }
      const std::optional<Batch> now =
          flying ? std::exchange(flying, std::nullopt) : world.scheduler.next();
      if (!now) {
        continue;
      }
      flying = pick(8) == 0 ? std::nullopt : world.scheduler.next_after(*now);
      steps_ahead += flying ? 1 : 0;
      std::vector<std::optional<int32_t>> sampled;
      for (const Slice& slice : now->slices) {
        const bool wanted = slice.sequence != nullptr && slice.samples;
        sampled.push_back(
            wanted ? std::optional(token_of(slice.sequence->id(), slice.begin + slice.count))
                   : std::nullopt);
      }
      for (const StepResult& result : world.scheduler.commit(*now, sampled)) {
        if (result.finished == nullptr) {
          continue;
        }
        for (size_t i = 0; flying && i < flying->slices.size(); ++i) {
          Slice& slice = flying->slices[i];
          if (slice.sequence == result.sequence) {
            slice.sequence = nullptr;
            ++passed_over;
          }
        }
        const Sequence& sequence = *result.finished;
        for (int64_t place = sequence.prompt_tokens; place < sequence.num_tokens(); ++place) {
          const int32_t token = sequence.tokens[static_cast<size_t>(place)];
          EXPECT_EQ(token, token_of(sequence.id(), place));
          EXPECT_EQ(token == kEnd && result.finish == FinishReason::StopToken,
                    place + 1 == sequence.num_tokens() && token == kEnd &&
                        !(sequence.num_generated() >= sequence.request.sampling.max_new_tokens ||
                          sequence.num_tokens() >= sequence.max_tokens));
        }
      }
      world.scheduler.check_integrity();
    }
    world.finish_all();
    EXPECT_EQ(world.pool.free_pages() + world.cache.num_pages(), world.pool.num_pages());
  }
  EXPECT_GT(steps_ahead, 500);
  EXPECT_GT(passed_over, 20);
}

TEST(Scheduler, KeepsItsInvariantsOverRandomHistories) {
  int64_t retractions = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    uint64_t counter = 0;
    const auto pick = [&](uint64_t below) {
      return static_cast<int32_t>(random_u64(seed, counter++) % below);
    };
    World world(12 + pick(12),
                {.max_running = 1 + pick(6),
                 .max_step_tokens = 1 + pick(20),
                 .reserve = 0.2 * pick(3),
                 .prefix_cache = pick(3) != 0,
                 .replay_by_decode = pick(2) == 0});
    for (int step = 0; step < 200; ++step) {
      const int32_t what = pick(8);
      if (what < 2 && world.scheduler.num_waiting() < 6) {
        world.add(prompt(1 + pick(20), pick(3) * 5), pick(12));
      } else if (what == 2) {
        world.scheduler.remove(1 + static_cast<RequestId>(pick(world.last_id + 1)));
      } else if (what == 3 && pick(10) == 0) {
        world.scheduler.retract_all();
      } else {
        world.step(pick(4));
      }
      world.scheduler.check_integrity();
    }
    world.finish_all();
    retractions += world.scheduler.num_retractions();
    EXPECT_EQ(world.pool.free_pages() + world.cache.num_pages(), world.pool.num_pages());
    EXPECT_EQ(world.scheduler.used_tokens(), 0);
  }
  EXPECT_GT(retractions, 0) << "the histories never put the pool under pressure";
}

}  // namespace
}  // namespace nibble::engine
