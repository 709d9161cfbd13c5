// When a stream sends an event of a sequence: at its end; otherwise when there is something new,
// the interval allows it and the client keeps up (what it misses comes with the next event, so a
// slow client costs merged events, not memory).
#pragma once

#include <cstddef>
#include <cstdint>

#include "server/generation.h"
#include "server/http/exchange.h"

namespace nibble::server {

class StreamPace {
 public:
  // True: send now. interval: tokens between events; the first token is always sent.
  bool due(const Sequence& sequence, const http::Exchange& exchange, int64_t interval) {
    constexpr size_t kHighWaterBytes = size_t{256} << 10;
    const size_t num_tokens = sequence.tokens.size();
    const size_t num_bytes = sequence.text.text().size();
    if (!sequence.done()) {
      const bool grown = sequence.text.decodes() ? num_bytes > bytes_ : num_tokens > tokens_;
      const bool paced = tokens_ == 0 || static_cast<int64_t>(num_tokens - tokens_) >= interval;
      if (!grown || !paced || exchange.queued_bytes() > kHighWaterBytes) {
        return false;
      }
    }
    tokens_ = num_tokens;
    bytes_ = num_bytes;
    return true;
  }

 private:
  size_t tokens_ = 0;  // sent so far
  size_t bytes_ = 0;
};

}  // namespace nibble::server
