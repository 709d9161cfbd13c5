#include "server/metrics.h"

#include <map>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace nibble::server {

namespace {

using Labels = std::map<std::string, std::string>;

const prometheus::Histogram::BucketBoundaries kLatencyBuckets = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120};
const prometheus::Histogram::BucketBoundaries kLengthBuckets = {
    1, 8, 32, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072};

}  // namespace

struct Metrics::Impl {
  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  Labels labels;

  prometheus::Counter& counter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(*registry).Add(labels);
  }
  prometheus::Gauge& gauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(*registry).Add(labels);
  }
  prometheus::Histogram& histogram(const char* name,
                                   const char* help,
                                   const prometheus::Histogram::BucketBoundaries& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(*registry).Add(labels,
                                                                                      buckets);
  }

  explicit Impl(const std::string& model_name)
      : labels{{"model_name", model_name}, {"engine_type", "unified"}, {"tp_rank", "0"}} {}

  prometheus::Counter& requests = counter("sglang:num_requests_total", "sequences that ended");
  prometheus::Counter& aborted = counter("sglang:num_aborted_requests_total", "sequences aborted");
  prometheus::Counter& prompt = counter("sglang:prompt_tokens_total", "prompt tokens");
  prometheus::Counter& cached =
      counter("sglang:cached_tokens_total", "prompt tokens from the cache");
  prometheus::Counter& generated = counter("sglang:generation_tokens_total", "generated tokens");
  prometheus::Histogram& first_token = histogram(
      "sglang:time_to_first_token_seconds", "from arrival to the first token", kLatencyBuckets);
  prometheus::Histogram& gap = histogram(
      "sglang:inter_token_latency_seconds", "between two tokens of a sequence", kLatencyBuckets);
  prometheus::Histogram& total = histogram(
      "sglang:e2e_request_latency_seconds", "from arrival to the last token", kLatencyBuckets);
  prometheus::Histogram& prompt_lengths =
      histogram("sglang:prompt_tokens_histogram", "prompt tokens of a sequence", kLengthBuckets);
  prometheus::Histogram& answer_lengths = histogram(
      "sglang:generation_tokens_histogram", "generated tokens of a sequence", kLengthBuckets);
  prometheus::Gauge& running = gauge("sglang:num_running_reqs", "sequences in the batch");
  prometheus::Gauge& waiting = gauge("sglang:num_queue_reqs", "sequences that wait");
  prometheus::Gauge& used = gauge("sglang:num_used_tokens", "tokens in the KV cache");
  prometheus::Gauge& usage = gauge("sglang:token_usage", "share of the KV cache in use");
  prometheus::Gauge& capacity = gauge("sglang:max_total_num_tokens", "tokens the KV cache holds");
  prometheus::Gauge& throughput = gauge("sglang:gen_throughput", "tokens per second, last decode");
  prometheus::Family<prometheus::Counter>& http_requests =
      prometheus::BuildCounter()
          .Name("sglang:http_requests_total")
          .Help("HTTP requests by path of the route")
          .Register(*registry);
};

Metrics::Metrics(const std::string& model_name) : impl_(std::make_unique<Impl>(model_name)) {}

Metrics::~Metrics() = default;

void Metrics::count_http_request(std::string_view path) {
  impl_->http_requests.Add({{"endpoint", std::string(path)}}).Increment();
}

void Metrics::observe_finished(const Finished& sequence) {
  impl_->requests.Increment();
  if (sequence.aborted) {
    impl_->aborted.Increment();
  }
  impl_->prompt.Increment(static_cast<double>(sequence.prompt_tokens));
  impl_->cached.Increment(static_cast<double>(sequence.cached_tokens));
  impl_->generated.Increment(static_cast<double>(sequence.generated_tokens));
  impl_->prompt_lengths.Observe(static_cast<double>(sequence.prompt_tokens));
  impl_->answer_lengths.Observe(static_cast<double>(sequence.generated_tokens));
  if (sequence.first_token_seconds >= 0) {
    impl_->first_token.Observe(sequence.first_token_seconds);
  }
  impl_->total.Observe(sequence.total_seconds);
}

void Metrics::observe_token_gap(double seconds) { impl_->gap.Observe(seconds); }

std::string Metrics::render(const engine::Load& load) const {
  const auto used = static_cast<double>(load.used_tokens);
  const auto capacity = static_cast<double>(load.max_total_tokens);
  impl_->running.Set(static_cast<double>(load.running));
  impl_->waiting.Set(static_cast<double>(load.waiting));
  impl_->used.Set(used);
  impl_->usage.Set(capacity > 0 ? used / capacity : 0);
  impl_->capacity.Set(capacity);
  impl_->throughput.Set(load.last_decode_tokens_per_second);
  return prometheus::TextSerializer().Serialize(impl_->registry->Collect());
}

}  // namespace nibble::server
