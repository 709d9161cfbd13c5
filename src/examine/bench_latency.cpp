#include "examine/bench_latency.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/random.h"
#include "examine/report_json.h"

namespace nibble::examine {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// What the sinks of one run write; shared with them, since an engine may outlive a failed run.
struct Run {
  std::mutex mutex;
  std::condition_variable ended;
  int64_t without_first = 0;
  int64_t without_last = 0;
  Clock::time_point first;  // when the last request got its first token
  Clock::time_point last;   // when the last request ended
  std::optional<Error> error;
};

engine::Sink sink_of(const std::shared_ptr<Run>& run) {
  return [run, has_first = false](engine::Output&& output) mutable {
    const auto now = Clock::now();
    const std::lock_guard lock(run->mutex);
    if (!has_first && !output.tokens.empty()) {
      has_first = true;
      --run->without_first;
      run->first = now;
    }
    if (output.finish == engine::FinishReason::None) {
      return;
    }
    if (output.finish != engine::FinishReason::Length && !run->error) {
      run->error = output.finish == engine::FinishReason::Error
                       ? output.error
                       : Error{ErrorCode::Internal, "a request ended before its length", {}};
    }
    run->last = now;
    --run->without_last;
    run->ended.notify_one();
  };
}

std::vector<int32_t> random_prompt(int64_t length, int64_t vocab_size, uint64_t seed) {
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<int32_t>(random_u64(seed, i) % static_cast<uint64_t>(vocab_size));
  }
  return prompt;
}

struct RunTimes {
  double first_token_seconds = 0;
  double decode_seconds = 0;
};

// `seed` makes the prompts: a different one for every run.
Result<RunTimes> run_once(engine::Engine& engine, const BenchLatencyRow& row, uint64_t seed) {
  const auto run = std::make_shared<Run>();
  run->without_first = row.batch;
  run->without_last = row.batch;
  std::vector<engine::Request> requests(static_cast<size_t>(row.batch));
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = random_prompt(row.prefill, engine.info().vocab_size, random_u64(seed, i));
    requests[i].sampling.temperature = 0.0f;
    requests[i].sampling.ignore_eos = true;
    requests[i].sampling.max_new_tokens = static_cast<int32_t>(row.decode);
    requests[i].sink = sink_of(run);
  }
  const auto begin = Clock::now();
  for (engine::Request& request : requests) {
    TRY(engine.submit(std::move(request)));
  }
  std::unique_lock lock(run->mutex);
  run->ended.wait(lock, [&] { return run->without_last == 0; });
  if (const std::optional<Error>& error = run->error) {
    return tl::unexpected(*error);
  }
  return RunTimes{seconds_between(begin, run->first), seconds_between(run->first, run->last)};
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Result<void> check(const BenchLatencyRow& row, const engine::ModelInfo& info) {
  const int64_t tokens = row.prefill + row.decode;
  if (row.prefill < 1 || row.decode < 1 || row.batch < 1) {
    return invalid("expected positive sizes", "--prefill, --decode, --batch");
  }
  if (tokens > info.context_length) {
    return invalid(fmt::format("{} + {} tokens exceed the context length {}",
                               row.prefill,
                               row.decode,
                               info.context_length),
                   "--prefill, --decode");
  }
  if (tokens > info.max_total_tokens / row.batch) {
    return invalid(fmt::format("{} requests of {} tokens exceed the KV cache of {} tokens",
                               row.batch,
                               tokens,
                               info.max_total_tokens),
                   "--batch");
  }
  return {};
}

}  // namespace

double BenchLatencyRow::prefill_tokens_per_second() const {
  return first_token_seconds > 0 ? static_cast<double>(batch * prefill) / first_token_seconds : 0.0;
}

double BenchLatencyRow::decode_tokens_per_second() const {
  return decode_seconds > 0 ? static_cast<double>(batch * (decode - 1)) / decode_seconds : 0.0;
}

Result<BenchLatencyReport> bench_latency(engine::Engine& engine,
                                         const BenchLatencyOptions& options,
                                         const std::function<double()>& read_gbps) {
  const engine::ModelInfo& info = engine.info();
  BenchLatencyReport report;
  report.model = info.model_path;
  report.quantization = info.quantization;
  report.weight_bytes = info.weight_bytes;
  report.linear_bytes = info.linear_bytes;
  report.load_seconds = info.load_seconds;
  for (const int64_t batch : options.batch) {
    for (const int64_t prefill : options.prefill) {
      BenchLatencyRow row;
      row.batch = batch;
      row.prefill = prefill;
      row.decode = options.decode;
      TRY(check(row, info));
      report.rows.push_back(row);
    }
  }
  report.read_gbps = read_gbps();
  uint64_t seed = 1;
  for (BenchLatencyRow& row : report.rows) {
    TRY(run_once(engine, row, seed++));
    std::vector<double> first;
    std::vector<double> decode;
    for (int i = 0; i < std::max(options.repeats, 1); ++i) {
      const RunTimes times = TRY(run_once(engine, row, seed++));
      first.push_back(times.first_token_seconds);
      decode.push_back(times.decode_seconds);
    }
    row.first_token_seconds = median(first);
    row.decode_seconds = median(decode);
  }
  report.read_gbps = std::max(report.read_gbps, read_gbps());
  for (BenchLatencyRow& row : report.rows) {
    const double steps_per_second = row.decode_tokens_per_second() / static_cast<double>(row.batch);
    row.read_share =
        report.read_gbps > 0
            ? steps_per_second * static_cast<double>(info.linear_bytes) / (report.read_gbps * 1e9)
            : 0.0;
  }
  return report;
}

boost::json::value to_json(const BenchLatencyReport& report) {
  boost::json::array rows;
  for (const BenchLatencyRow& row : report.rows) {
    rows.push_back(
        boost::json::object{{"batch", row.batch},
                            {"prefill", row.prefill},
                            {"decode", row.decode},
                            {"first_token_ms", row.first_token_seconds * 1e3},
                            {"prefill_tps", row.prefill_tokens_per_second()},
                            {"decode_tps", number_or_null(row.decode_tokens_per_second())},
                            {"read_share", number_or_null(row.read_share)}});
  }
  return boost::json::object{{"machine",
                              {{"name", report.machine},
                               {"threads", report.num_threads},
                               {"read_gbps", number_or_null(report.read_gbps)}}},
                             {"model",
                              {{"path", report.model},
                               {"quantization", report.quantization},
                               {"weight_bytes", report.weight_bytes},
                               {"linear_bytes", report.linear_bytes},
                               {"load_seconds", report.load_seconds}}},
                             {"rows", std::move(rows)}};
}

std::string to_text(const BenchLatencyReport& report) {
  std::string out = fmt::format(
      "{}, {}: {:.0f} MB of weights, {:.0f} MB of them in matrices, loaded in {:.2f} s\n",
      report.model,
      report.quantization,
      static_cast<double>(report.weight_bytes) / 1e6,
      static_cast<double>(report.linear_bytes) / 1e6,
      report.load_seconds);
  out += fmt::format("{}, {} threads", report.machine, report.num_threads);
  out += report.read_gbps > 0 ? fmt::format(", reads {:.1f} GB/s\n", report.read_gbps) : "\n";
  out += fmt::format("{:>6} {:>8} {:>8} {:>15} {:>12} {:>11} {:>11}\n",
                     "batch",
                     "prefill",
                     "decode",
                     "first token ms",
                     "prefill t/s",
                     "decode t/s",
                     "of reading");
  for (const BenchLatencyRow& row : report.rows) {
    out += fmt::format("{:>6} {:>8} {:>8} {:>15.1f} {:>12.1f} {:>11.1f} {:>11}\n",
                       row.batch,
                       row.prefill,
                       row.decode,
                       row.first_token_seconds * 1e3,
                       row.prefill_tokens_per_second(),
                       row.decode_tokens_per_second(),
                       row.read_share > 0 ? fmt::format("{:.0f} %", row.read_share * 100) : "-");
  }
  return out;
}

}  // namespace nibble::examine
