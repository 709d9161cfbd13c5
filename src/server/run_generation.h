// Starts the sequences of a request and ties them to its exchange: the answer is told of news, a
// stream is opened once everything was accepted, a client that goes away aborts them.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "server/endpoint.h"
#include "server/generation.h"

namespace nibble::server {

// Answer: void update(Generation&, size_t index). It holds the exchange; the generation holds it.
template <typename Answer>
Result<void> run_generation(Call& call,
                            std::vector<SequenceSpec>&& specs,
                            const std::shared_ptr<Answer>& answer,
                            bool stream) {
  auto generation = std::make_shared<Generation>(call.context, call.queue, std::move(specs));
  // News comes through the queue this runs on, so it cannot overtake the opening of the stream.
  TRY(generation->start(
      [answer](Generation& running, size_t index) { answer->update(running, index); }));
  if (stream) {
    call.exchange->start_stream("text/event-stream; charset=utf-8");
  }
  call.exchange->on_disconnect([weak = std::weak_ptr(generation)] {
    if (const auto running = weak.lock()) {
      running->cancel_all();
    }
  });
  return {};
}

}  // namespace nibble::server
