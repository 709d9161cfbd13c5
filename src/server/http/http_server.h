// The HTTP/1.1 listener: accepts, reads requests within limits, hands them to the handler and sends
// what the exchange produces. Keep-alive, chunked streams, disconnects seen while a handler works.
// The .cpp is the only file that includes the HTTP library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "server/http/exchange.h"
#include "server/http/reserved_port.h"

namespace nibble::server::http {

struct HttpConfig {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  int num_threads = 2;
  size_t max_header_bytes = size_t{64} << 10;
  size_t max_body_bytes = size_t{64} << 20;
  size_t max_inflight_body_bytes = size_t{512} << 20;  // of all requests together
  size_t max_connections = 4096;
  double idle_timeout_seconds = 75;   // between requests of a connection
  double read_timeout_seconds = 60;   // for the header, and for the body without progress
  double write_timeout_seconds = 60;  // without progress
  std::string server_name = "nibble";
};

// Called on an io thread: must not block.
using Handler = std::function<void(ExchangePtr)>;

class HttpServer {
  struct Impl;

 public:
  explicit HttpServer(std::unique_ptr<Impl> impl);  // use start()
  // Listens and serves until stopped. A busy port or a bad address is an error.
  static Result<std::unique_ptr<HttpServer>> start(HttpConfig config, Handler handler);
  // The same on an address taken earlier; host and port of the config are only words then.
  static Result<std::unique_ptr<HttpServer>> start(HttpConfig config,
                                                   Handler handler,
                                                   ReservedPort reserved);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();  // as stop()

  uint16_t port() const;
  size_t num_connections() const;
  // No new connections; open ones are closed after the answer they wait for. True when all were
  // done within the time.
  bool drain(double timeout_seconds);
  void stop();  // closes everything and joins the threads

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::server::http
