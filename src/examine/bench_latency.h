// `nibble bench latency`: tokens/s of prefill and decode of a whole model through the engine, as
// one client or a batch of equal clients see it. Prompts are random ids, new ones for every
// repetition, so that no prefix is ever found in the cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <boost/json/value.hpp>

#include "base/error.h"
#include "engine/engine.h"

namespace nibble::examine {

struct BenchLatencyOptions {
  std::vector<int64_t> prefill{128};  // prompt lengths, a row each
  int64_t decode = 64;                // tokens generated after each prompt
  std::vector<int64_t> batch{1};      // requests at once, a row each
  int repeats = 5;                    // measured runs of each row, after one that is not
};

struct BenchLatencyRow {
  int64_t batch = 0;
  int64_t prefill = 0;
  int64_t decode = 0;
  // Medians over the repetitions.
  double first_token_seconds = 0;  // of the request that got it last
  double decode_seconds = 0;       // from there to the last token of all
  double prefill_tokens_per_second() const;
  double decode_tokens_per_second() const;  // of the whole batch
  // What reading every matrix once takes, of the time of a decode step; 0 when unknown.
  double read_share = 0;
};

struct BenchLatencyReport {
  std::string machine;
  int num_threads = 0;
  std::string model;
  std::string quantization;
  int64_t weight_bytes = 0;
  int64_t linear_bytes = 0;
  double load_seconds = 0;
  double read_gbps = 0;  // the better of before and after the rows; 0 when unknown
  std::vector<BenchLatencyRow> rows;
};

// Runs the rows on an engine that does nothing else; `read_gbps` measures the machine and may give
// 0. Refused: sizes that are not positive or do not fit the engine's context or KV capacity.
Result<BenchLatencyReport> bench_latency(engine::Engine& engine,
                                         const BenchLatencyOptions& options,
                                         const std::function<double()>& read_gbps);

// {"machine": {...}, "model": {...}, "rows": [{"batch", "prefill", "decode", "first_token_ms",
// "prefill_tps", "decode_tps", "read_share"}]}
boost::json::value to_json(const BenchLatencyReport& report);
std::string to_text(const BenchLatencyReport& report);  // a table

}  // namespace nibble::examine
