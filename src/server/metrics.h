// /metrics: Prometheus text under upstream's names. Counters and histograms are kept here, gauges
// are read from the engine when scraped. Thread-safe; observing costs a few atomic adds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/engine.h"

namespace nibble::server {

class Metrics {
 public:
  explicit Metrics(const std::string& model_name);
  ~Metrics();

  void count_http_request(std::string_view path);
  // A sequence has ended. Seconds are from the request's arrival; first_token < 0: there was none.
  struct Finished {
    size_t prompt_tokens = 0;
    size_t cached_tokens = 0;
    size_t generated_tokens = 0;
    double first_token_seconds = -1;
    double total_seconds = 0;
    bool aborted = false;
  };
  void observe_finished(const Finished& sequence);
  void observe_token_gap(double seconds);  // between two tokens of a sequence

  std::string render(const engine::Load& load) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::server
