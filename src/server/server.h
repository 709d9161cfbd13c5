// The server: engine, text and HTTP joined. Start, then drain and stop.
#pragma once

#include <cstdint>
#include <memory>

#include "base/error.h"
#include "engine/engine.h"
#include "server/config.h"
#include "server/context.h"

namespace nibble::server {

class Server {
 public:
  explicit Server(std::unique_ptr<ServerContext> context);  // use start()
  // engine and text (null: ids only) must outlive the server.
  static Result<std::unique_ptr<Server>> start(ServerConfig config,
                                               engine::Engine& engine,
                                               const TextModel* text);
  // The same on an address taken earlier.
  static Result<std::unique_ptr<Server>> start(ServerConfig config,
                                               engine::Engine& engine,
                                               const TextModel* text,
                                               http::ReservedPort port);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();  // as stop()

  uint16_t port() const;
  ServerContext& context() { return *context_; }

  // No new connections or requests; running ones are finished, or aborted when the time is over.
  void drain(double timeout_seconds);
  void stop();

 private:
  void handle(http::ExchangePtr exchange);

  std::unique_ptr<ServerContext> context_;
  std::unique_ptr<http::HttpServer> http_;
};

}  // namespace nibble::server
