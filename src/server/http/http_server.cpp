#include "server/http/http_server.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/log.h"
#include "server/http/connection.h"

namespace nibble::server::http {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

struct HttpServer::Impl {
  Shared shared;
  asio::io_context io;
  tcp::acceptor acceptor{asio::make_strand(io)};
  uint16_t port = 0;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable all_closed;
  std::unordered_set<std::shared_ptr<Connection>> connections;  // guarded by mutex

  asio::awaitable<void> accept_loop();
  void spawn(tcp::socket socket);
  void stop_accepting();
};

asio::awaitable<void> HttpServer::Impl::accept_loop() {
  while (acceptor.is_open()) {
    error_code code;
    tcp::socket socket = co_await acceptor.async_accept(
        asio::make_strand(io), asio::redirect_error(asio::use_awaitable, code));
    if (!acceptor.is_open() || code == asio::error::operation_aborted) {
      co_return;
    }
    if (code) {  // out of descriptors: wait for some to come back
      LOG(warn, "cannot accept a connection", {"reason", code.message()});
      asio::steady_timer pause(acceptor.get_executor(), std::chrono::milliseconds(100));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, code));
      continue;
    }
    spawn(std::move(socket));
  }
}

void HttpServer::Impl::spawn(tcp::socket socket) {
  auto connection = std::make_shared<Connection>(std::move(socket), shared);
  {
    const std::lock_guard lock(mutex);
    if (connections.size() >= shared.config.max_connections) {
      LOG(warn, "connection refused: too many are open", {"open", connections.size()});
      return;  // closes the socket
    }
    connections.insert(connection);
  }
  asio::co_spawn(
      connection->executor(),
      [connection] { return connection->serve(); },
      [this, connection](const std::exception_ptr& failure) {
        if (failure) {  // out of memory, or a bug in a handler; other connections go on
          LOG(error, "a connection ended with an exception");
        }
        const std::lock_guard lock(mutex);
        connections.erase(connection);
        all_closed.notify_all();
      });
}

void HttpServer::Impl::stop_accepting() {
  shared.draining = true;
  asio::post(acceptor.get_executor(), [this] {
    error_code ignored;
    acceptor.close(ignored);
  });
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() { stop(); }

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpConfig config, Handler handler) {
  ReservedPort port = TRY(ReservedPort::bind(config.host, config.port));
  return start(std::move(config), std::move(handler), std::move(port));
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpConfig config,
                                                      Handler handler,
                                                      ReservedPort reserved) {
  auto impl = std::make_unique<Impl>();
  impl->shared.config = std::move(config);
  impl->shared.handler = std::move(handler);
  impl->shared.bodies = std::make_shared<BodyBudget>(impl->shared.config.max_inflight_body_bytes);
  const HttpConfig& settings = impl->shared.config;

  error_code code;
  impl->port = reserved.port();
  impl->acceptor.assign(reserved.is_v6() ? tcp::v6() : tcp::v4(), reserved.release(), code);
  if (!code) {  // another process may have begun to listen since: Linux says so only here
    impl->acceptor.listen(asio::socket_base::max_listen_connections, code);
  }
  if (code) {
    return invalid("cannot listen on " + settings.host + ":" + std::to_string(impl->port) + ": " +
                       code.message(),
                   "port");
  }
  asio::co_spawn(
      impl->acceptor.get_executor(),
      [state = impl.get()] { return state->accept_loop(); },
      [](const std::exception_ptr& failure) {
        if (failure) {
          LOG(error, "the listener ended with an exception");
        }
      });
  for (int i = 0; i < std::max(1, settings.num_threads); ++i) {
    impl->threads.emplace_back([state = impl.get()] { state->io.run(); });
  }
  return std::make_unique<HttpServer>(std::move(impl));
}

uint16_t HttpServer::port() const { return impl_->port; }

size_t HttpServer::num_connections() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->connections.size();
}

bool HttpServer::drain(double timeout_seconds) {
  impl_->stop_accepting();
  std::unique_lock lock(impl_->mutex);
  for (const auto& connection : impl_->connections) {
    connection->close_when_idle();
  }
  return impl_->all_closed.wait_for(lock, std::chrono::duration<double>(timeout_seconds), [this] {
    return impl_->connections.empty();
  });
}

void HttpServer::stop() {
  if (impl_->threads.empty()) {
    return;
  }
  impl_->stop_accepting();
  {
    std::unique_lock lock(impl_->mutex);
    for (const auto& connection : impl_->connections) {
      connection->close();
    }
    impl_->all_closed.wait_for(
        lock, std::chrono::seconds(5), [this] { return impl_->connections.empty(); });
  }
  impl_->io.stop();
  for (std::thread& thread : impl_->threads) {
    thread.join();
  }
  impl_->threads.clear();
}

}  // namespace nibble::server::http
