// One client connection: a coroutine on its own strand. Private to http_server.cpp.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core/flat_buffer.hpp>

#include "server/http/http_server.h"

namespace nibble::server::http {

// What all connections of a server share.
struct Shared {
  HttpConfig config;
  Handler handler;
  std::shared_ptr<BodyBudget> bodies;  // shared with the requests
  std::atomic<bool> draining{false};
};

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::ip::tcp::socket socket, Shared& shared);

  boost::asio::awaitable<void> serve();
  // From any thread.
  void close_when_idle();
  void close();
  auto executor() { return socket_.get_executor(); }

 private:
  enum class Next : uint8_t { KeepAlive, Close };

  boost::asio::awaitable<Next> serve_one();
  boost::asio::awaitable<Next> answer(Request request, bool keep_alive, bool http_1_1);
  boost::asio::awaitable<Next> refuse(int status, std::string message);
  boost::asio::awaitable<bool> send(std::string bytes);
  boost::asio::awaitable<void> discard_input();
  boost::asio::awaitable<ExchangeState::News> wait_for_news(ExchangeState& state);

  void arm(double seconds);  // closes the socket unless re-armed or disarmed in time
  void disarm();
  void watch(std::shared_ptr<ExchangeState> state);  // reads ahead to see a disconnect
  boost::asio::awaitable<void> stop_watching();
  std::string head(int status,
                   std::string_view content_type,
                   std::string_view request_id,
                   bool keep_alive) const;

  boost::asio::ip::tcp::socket socket_;
  Shared& shared_;
  boost::beast::flat_buffer buffer_;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer event_;  // cancelled to wake the coroutine
  boost::asio::cancellation_signal stop_watch_;
  bool watching_ = false;
  bool gone_ = false;  // the client closed or the socket failed
  bool idle_ = true;   // between requests
};

// A request id that is safe to echo: the client's if it is short and printable, else a random one.
std::string make_request_id(std::string_view client_id);

}  // namespace nibble::server::http
