// One request and the answer being made to it. Any thread may answer; nothing here blocks. What is
// written is queued and sent by the connection in its own time: a producer that can wait looks at
// queued_bytes() and merges its output instead of queueing more.
//
// Letting go of an Exchange without an answer answers with 500 (or ends the stream), so that a lost
// reference never leaves a client hanging.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/message.h"

namespace nibble::server::http {

// What the connection and the exchange share.
class ExchangeState {
 public:
  // `wake` is called, from any thread, when the connection has something to send.
  explicit ExchangeState(std::function<void()> wake) : wake_(std::move(wake)) {}

  struct News {
    std::optional<Response> response;          // the whole answer
    std::optional<std::string> stream_opened;  // content type; the bytes follow
    std::string bytes;                         // of the stream
    bool finished = false;
  };
  News take_news();  // empty when there is none
  void mark_disconnected();
  void detach();  // the connection takes no more news

 private:
  friend class Exchange;
  void notify();

  mutable std::mutex mutex_;
  std::function<void()> wake_;
  News news_;
  bool has_news_ = false;
  bool answered_ = false;
  bool streaming_ = false;
  bool finished_ = false;
  bool disconnected_ = false;
  std::function<void()> on_disconnect_;
};

class Exchange final {
 public:
  Exchange(Request request, std::shared_ptr<ExchangeState> state)
      : request_(std::move(request)), state_(std::move(state)) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange();

  const Request& request() const { return request_; }
  Request& request() { return request_; }

  // The whole answer; the first answer counts, later ones are dropped.
  void respond(Response response);

  // A stream: 200 with the content type, then bytes, then the end.
  void start_stream(std::string content_type);
  void write(std::string_view bytes);
  void finish();

  bool answered() const;
  size_t queued_bytes() const;  // written, not yet taken by the connection
  bool disconnected() const;
  // Called once, from any thread, as soon as the client is known to be gone; at once when it is
  // already. Replaces an earlier callback. Never called after finish() or respond().
  void on_disconnect(std::function<void()> callback);

 private:
  Request request_;
  std::shared_ptr<ExchangeState> state_;  // shared with the connection, whichever ends last
};

using ExchangePtr = std::shared_ptr<Exchange>;  // the handler's work outlives the handler's call

}  // namespace nibble::server::http
