// GET /health: is the process serving; GET /health_generate: does a token come out, with traffic
// that is already running taken as proof.
#include <memory>

#include "server/endpoints/endpoints.h"
#include "server/generation.h"
#include "server/run_generation.h"

namespace nibble::server {

namespace {

void respond_status(http::Exchange& exchange, int status) {
  exchange.respond({status, "", "", {}});
}

bool is_up(const ServerContext& context) {
  return context.state == ServerState::Serving && context.engine.healthy();
}

struct HealthAnswer {
  http::ExchangePtr exchange;  // shared with the call and the timer

  void update(Generation& generation, size_t index) {
    const Sequence& sequence = generation.sequences()[index];
    if (sequence.done()) {
      respond_status(*exchange, sequence.failed() ? 503 : 200);
    }
  }
};

// Until the deadline: have tokens come out since? What nobody waits for any more is aborted, or
// probes would fill the queue of an engine that is paused.
void watch_progress(const Call& call,
                    const std::string& rid,
                    int64_t tokens_before,
                    double seconds_left) {
  constexpr double kPeriodSeconds = 0.25;
  TaskPool::Queue queue = call.queue;
  queue.post_after(kPeriodSeconds, [call, rid, tokens_before, seconds_left] {
    if (call.exchange->answered()) {
      return;
    }
    if (call.context.engine.load().generated_tokens > tokens_before) {
      respond_status(*call.exchange, 200);
    } else if (seconds_left <= 0 || !is_up(call.context)) {
      respond_status(*call.exchange, 503);
      call.context.live.cancel_prefix(rid);
    } else {
      watch_progress(call, rid, tokens_before, seconds_left - kPeriodSeconds);
    }
  });
}

}  // namespace

// A server without weights is well, but asleep: its state is a header, so that a supervisor does
// not restart it.
Result<void> handle_health(Call& call) {
  const std::string state(to_string(call.context.engine.weights().state));
  call.exchange->respond({is_up(call.context) ? 200 : 503, "", "", {{"X-Nibble-State", state}}});
  return {};
}

Result<void> handle_health_generate(Call& call) {
  if (!is_up(call.context)) {
    respond_status(*call.exchange, 503);
    return {};
  }
  const int64_t tokens_before = call.context.engine.load().generated_tokens;
  SequenceSpec spec;
  const std::string rid = "health-" + http::random_id();
  spec.rid = rid;
  spec.prompt = {0};
  spec.sampling.temperature = 0;
  spec.sampling.max_new_tokens = 1;
  spec.sampling.ignore_eos = true;
  std::vector<SequenceSpec> specs;
  specs.push_back(std::move(spec));
  auto answer = std::make_shared<HealthAnswer>(HealthAnswer{call.exchange});
  if (!run_generation(call, std::move(specs), answer, false)) {
    respond_status(*call.exchange, 503);
    return {};
  }
  watch_progress(call, rid, tokens_before, call.context.config.health_timeout_seconds);
  return {};
}

}  // namespace nibble::server
