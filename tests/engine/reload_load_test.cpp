// 200 weight updates under a constant load of 16 streams: no request lost, no stale token, no
// growth of memory; prints the longest pause a client saw beside staging and commit times.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "support/checkpoint_edit.h"
#include "support/data_dir.h"
#include "support/engine_harness.h"
#include "support/temp_dir.h"

namespace nibble::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kStreams = 16;
constexpr int kUpdates = 200;

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

std::vector<int32_t> prompt_of(int stream) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < 10 + stream; ++i) {
    tokens.push_back((i * 31 + stream * 7) % 512);
  }
  return tokens;
}

// A stream that submits again whenever it has finished, and measures gaps between its tokens.
struct Stream {
  double longest_gap = 0;
  int64_t answers = 0;
  int64_t bad = 0;
};

TEST(ReloadUnderLoad, TwoHundredUpdatesLoseNothingAndDoNotGrow) {
  const std::string a = test::data_path("golden/llama-nvfp4");
  test::TempDir b;
  test::CheckpointEdit edit(a);
  edit.scale("input_layernorm", 1.5f);
  edit.write(b.path());
  const auto engine = test::start_engine(test::tiny_config(a));

  std::vector<std::vector<int32_t>> of_a;
  std::vector<std::vector<int32_t>> of_b;
  const auto engine_b = test::start_engine(test::tiny_config(b.path()));
  for (int i = 0; i < kStreams; ++i) {
    of_a.push_back(test::generate(*engine, test::greedy_request(prompt_of(i), 24)).tokens);
    of_b.push_back(test::generate(*engine_b, test::greedy_request(prompt_of(i), 24)).tokens);
    ASSERT_NE(of_a.back(), of_b.back());
  }

  std::atomic<bool> stop{false};
  std::vector<Stream> streams(kStreams);
  std::vector<std::thread> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back([&, i] {
      Stream& stream = streams[static_cast<size_t>(i)];
      while (!stop) {
        Request request = test::greedy_request(prompt_of(i), 24);
        test::Pending pending(*engine, std::move(request));
        Clock::time_point last = Clock::now();
        for (size_t token = 1; token <= 24; ++token) {
          pending.wait_for_tokens(token);
          const Clock::time_point now = Clock::now();
          if (token > 1) {
            stream.longest_gap = std::max(stream.longest_gap, seconds(now - last));
          }
          last = now;
        }
        const test::Answer answer = pending.wait();
        const auto index = static_cast<size_t>(i);
        stream.bad += answer.tokens != of_a[index] && answer.tokens != of_b[index] ? 1 : 0;
        ++stream.answers;
      }
    });
  }

  double staging = 0;
  double commit = 0;
  double waiting = 0;
  int64_t resident_early = 0;
  for (int i = 0; i < kUpdates; ++i) {
    WeightUpdate update;
    update.model_path = i % 2 == 0 ? b.path() : a;
    update.flush_cache = i % 3 != 0;
    const Result<WeightUpdateReport> report = engine->update_weights(update);
    ASSERT_TRUE(report.has_value()) << report.error().text();
    staging = std::max(staging, report->staging_seconds);
    commit = std::max(commit, report->commit_seconds);
    waiting = std::max(waiting, report->wait_seconds);
    if (i == 20) {
      resident_early = resident_bytes();
    }
  }
  const int64_t growth = resident_bytes() - resident_early;
  stop = true;
  for (std::thread& client : clients) {
    client.join();
  }
  int64_t answers = 0;
  double gap = 0;
  for (const Stream& stream : streams) {
    EXPECT_EQ(stream.bad, 0) << "an answer of neither checkpoint: a stale token";
    EXPECT_GT(stream.answers, 0);
    answers += stream.answers;
    gap = std::max(gap, stream.longest_gap);
  }
  EXPECT_EQ(engine->weights().num_updates, kUpdates);
  EXPECT_EQ(engine->load().used_tokens, 0);
  EXPECT_LT(growth, int64_t{16} << 20) << "memory grows with updates";
  std::printf(
      "%lld answers, longest gap between tokens %.1f ms, longest staging %.1f ms, wait %.1f ms, "
      "commit %.2f ms, growth %lld bytes\n",
      static_cast<long long>(answers),
      gap * 1e3,
      staging * 1e3,
      waiting * 1e3,
      commit * 1e3,
      static_cast<long long>(growth));
}

}  // namespace
}  // namespace nibble::engine
