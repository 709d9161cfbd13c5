#include "examine/bench_latency.h"

#include <chrono>
#include <thread>

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/data_dir.h"
#include "support/engine_harness.h"

namespace nibble::examine {
namespace {

using testing::HasSubstr;

std::unique_ptr<engine::Engine> tiny_engine() {
  return test::start_engine(test::tiny_config(test::data_path("golden/llama-nvfp4")));
}

TEST(BenchLatency, MeasuresEveryRowAndHoldsItAgainstTheReadSpeed) {
  const auto engine = tiny_engine();
  const BenchLatencyOptions options{.prefill = {5, 9}, .decode = 4, .batch = {1, 3}, .repeats = 2};
  int probes = 0;
  const auto report = bench_latency(*engine, options, [&] { return ++probes == 2 ? 2.0 : 1.0; });
  ASSERT_TRUE(report) << report.error().text();
  EXPECT_EQ(report->read_gbps, 2.0);
  EXPECT_LT(report->linear_bytes,
            report->weight_bytes);  // norms, embedding and rope table are apart
  ASSERT_EQ(report->rows.size(), 4u);
  EXPECT_EQ(report->rows[1].prefill, 9);
  EXPECT_EQ(report->rows[2].batch, 3);
  for (const BenchLatencyRow& row : report->rows) {
    EXPECT_GT(row.first_token_seconds, 0);
    EXPECT_GT(row.decode_seconds, 0);
    EXPECT_DOUBLE_EQ(row.prefill_tokens_per_second(),
                     static_cast<double>(row.batch * row.prefill) / row.first_token_seconds);
    EXPECT_DOUBLE_EQ(row.decode_tokens_per_second(),
                     static_cast<double>(row.batch * 3) / row.decode_seconds);
    EXPECT_DOUBLE_EQ(row.read_share,
                     3 / row.decode_seconds * static_cast<double>(report->linear_bytes) / 2e9);
  }
  // Each request of each run, the unmeasured ones too, generated all its tokens: no early end.
  // The snapshot follows the last answer.
  const int64_t all = 4 * 3 * 2 * (1 + 3);
  for (int i = 0; i < 1000 && engine->load().generated_tokens < all; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(engine->load().generated_tokens, all);
  const boost::json::value json = to_json(*report);
  EXPECT_EQ(json.at("rows").as_array().size(), 4u);
  EXPECT_EQ(json.at("rows").at(3).at("prefill").as_int64(), 9);
  EXPECT_THAT(to_text(*report), HasSubstr("reads 2.0 GB/s"));
}

TEST(BenchLatency, OneTokenHasNoDecodeSpeedAndAnUnknownReadSpeedNoShare) {
  const auto engine = tiny_engine();
  const BenchLatencyOptions options{.prefill = {3}, .decode = 1, .batch = {1}, .repeats = 1};
  const auto report = bench_latency(*engine, options, [] { return 0.0; });
  ASSERT_TRUE(report);
  EXPECT_EQ(report->rows[0].decode_tokens_per_second(), 0);
  EXPECT_TRUE(to_json(*report).at("rows").at(0).at("read_share").is_null());
  EXPECT_THAT(to_text(*report), testing::Not(HasSubstr("GB/s")));
}

TEST(BenchLatency, RefusesSizesThatCannotRun) {
  const auto engine = tiny_engine();
  const auto refused = [&](const BenchLatencyOptions& options) {
    const auto report = bench_latency(*engine, options, [] { return 0.0; });
    return report ? std::string() : report.error().text();
  };
  const int64_t context = engine->info().context_length;
  EXPECT_THAT(refused({.prefill = {0}}), HasSubstr("positive"));
  EXPECT_THAT(refused({.decode = 0}), HasSubstr("positive"));
  EXPECT_THAT(refused({.prefill = {context}, .decode = 1}), HasSubstr("context length"));
  EXPECT_THAT(refused({.prefill = {8}, .decode = 8, .batch = {engine->info().max_total_tokens}}),
              HasSubstr("KV cache"));
}

}  // namespace
}  // namespace nibble::examine
