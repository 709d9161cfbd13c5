// The lifecycle's state machine against a model of it in a few lines: from every state, every move
// is tried many times in random order, and each is accepted or refused as docs/engine.md says.
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "support/data_dir.h"
#include "support/engine_harness.h"

namespace nibble::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Tags = std::set<MemoryTag>;
const Tags kAll{MemoryTag::Weights, MemoryTag::KvCache, MemoryTag::CudaGraph};

// What the page says, nothing else.
struct Model {
  bool paused = false;
  bool weights = true;  // there are some
  Tags released;

  std::string state() const {
    if (!released.empty()) {
      return "released";
    }
    if (!weights) {
      return "needs-weights";
    }
    return paused ? "paused" : "serving";
  }
  bool serves() const { return released.empty() && weights; }

  bool pause() {
    paused = paused || serves();
    return serves();
  }
  bool resume() {
    paused = false;
    return true;
  }
  bool release(const Tags& wanted) {
    const Tags tags = wanted.empty() ? kAll : wanted;
    for (const MemoryTag tag : tags) {
      if (released.contains(tag)) {
        return false;
      }
    }
    released.insert(tags.begin(), tags.end());
    weights = weights && !tags.contains(MemoryTag::Weights);
    return true;
  }
  bool resume_memory(const Tags& wanted) {
    const Tags tags = wanted.empty() ? released : wanted;
    for (const MemoryTag tag : tags) {
      if (!released.contains(tag)) {
        return false;
      }
    }
    for (const MemoryTag tag : tags) {
      released.erase(tag);
    }
    return !tags.empty();
  }
  bool update() {
    const bool possible = !released.contains(MemoryTag::Weights);
    weights = weights || possible;
    return possible;
  }
};

std::vector<MemoryTag> list(const Tags& tags) { return {tags.begin(), tags.end()}; }

TEST(StateWalk, EveryMoveFromEveryStateDoesWhatThePageSays) {
  const std::string path = test::data_path("golden/llama-nvfp4");
  const auto engine = test::start_engine(test::tiny_config(path));
  const test::Answer expected = test::generate(*engine, test::greedy_request({5, 6, 7}, 4));
  const std::vector<Tags> tag_sets{{},
                                   {MemoryTag::Weights},
                                   {MemoryTag::KvCache},
                                   {MemoryTag::Weights, MemoryTag::KvCache},
                                   kAll};
  Model model;
  std::mt19937 random(7);
  std::map<std::pair<std::string, std::string>, int> seen;
  for (int step = 0; step < 6000; ++step) {
    const std::string from = model.state();
    const auto kind = random() % 12;
    const Tags& tags = tag_sets[random() % tag_sets.size()];
    std::string move;
    bool allowed = true;
    Result<void> result;
    if (kind < 3) {
      move = "release";
      allowed = model.release(tags);
      result = engine->release_memory(list(tags));
    } else if (kind < 7) {
      move = "resume memory";
      allowed = model.resume_memory(tags);
      result = engine->resume_memory(list(tags));
    } else if (kind == 7) {
      move = "pause";
      allowed = model.pause();
      result = engine->pause(static_cast<PauseMode>(random() % 3));
    } else if (kind == 8) {
      move = "continue";
      allowed = model.resume();
      result = engine->resume();
    } else if (kind == 9) {
      move = "update";
      allowed = model.update();
      WeightUpdate update;
      update.model_path = path;
      update.flush_cache = random() % 2 == 0;
      if (const auto report = engine->update_weights(update); !report) {
        result = tl::unexpected(report.error());
      }
    } else if (kind == 10) {
      move = "flush";
      result = engine->flush_cache(0);
    } else {
      move = "generate";
      allowed = model.serves();
      if (allowed && model.paused) {
        continue;  // it would wait
      }
      Request request = test::greedy_request({5, 6, 7}, 4);
      if (allowed) {
        ASSERT_EQ(test::generate(*engine, std::move(request)).tokens, expected.tokens);
      } else {
        request.sink = [](Output&&) {};
        if (const auto id = engine->submit(std::move(request)); !id) {
          result = tl::unexpected(id.error());
          EXPECT_EQ(id.error().code, ErrorCode::Overloaded);
        }
      }
    }
    ++seen[{from, move}];
    ASSERT_EQ(result.has_value(), allowed) << move << " from " << from << ", step " << step;
    if (!result && move != "generate") {
      EXPECT_EQ(result.error().code, ErrorCode::WrongState);
      EXPECT_THAT(result.error().text(),
                  AllOf(HasSubstr("state " + from), HasSubstr("possible now")));
    }
    ASSERT_EQ(to_string(engine->weights().state), model.state()) << "after " << move;
    ASSERT_EQ(list(model.released), engine->weights().released);
  }
  for (const char* state : {"serving", "paused", "released", "needs-weights"}) {
    for (const char* move : {"release", "resume memory", "pause", "continue", "update", "flush"}) {
      EXPECT_GT((seen[{state, move}]), 5) << move << " from " << state;
    }
  }
  EXPECT_TRUE(engine->healthy());
}

}  // namespace
}  // namespace nibble::engine
