#include "server/http/connection.h"

#include <algorithm>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>

#include "server/http/error_body.h"

namespace nibble::server::http {

namespace asio = boost::asio;
namespace beast_http = boost::beast::http;
using boost::beast::iequals;
using boost::system::error_code;

namespace {

constexpr size_t kReadAheadBytes = size_t{64} << 10;  // of pipelined requests
constexpr double kLingerSeconds = 2;
constexpr size_t kLingerBytes = size_t{256} << 20;

std::chrono::steady_clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

// As opposed to: the client sent something that is not HTTP.
bool connection_ended(const error_code& code) {
  return code == beast_http::error::end_of_stream || code == beast_http::error::partial_message ||
         code.category() == boost::system::system_category() ||
         code.category() == asio::error::get_misc_category();
}

Request to_request(beast_http::request<beast_http::string_body>&& message, BodyLease&& lease) {
  Request request;
  request.method = std::string(message.method_string());
  const std::string target =
      origin_form(std::string_view(message.target().data(), message.target().size()));
  const size_t question = std::min(target.find('?'), target.size());
  request.path = percent_decode(target.substr(0, question), false);
  request.query = target.substr(std::min(question + 1, target.size()));
  for (const auto& field : message) {
    request.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  }
  request.body = std::move(message.body());
  request.body_lease = std::move(lease);
  request.id = make_request_id(request.header("X-Request-Id"));
  return request;
}

}  // namespace

std::string make_request_id(std::string_view client_id) {
  const bool safe =
      !client_id.empty() && client_id.size() <= 128 &&
      std::all_of(client_id.begin(), client_id.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (safe) {
    return std::string(client_id);
  }
  return random_id();
}

Connection::Connection(asio::ip::tcp::socket socket, Shared& shared)
    : socket_(std::move(socket)),
      shared_(shared),
      buffer_(shared.config.max_header_bytes + kReadAheadBytes),
      deadline_(socket_.get_executor()),
      event_(socket_.get_executor()) {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

void Connection::close() {
  asio::post(executor(), [self = shared_from_this()] {
    error_code ignored;
    self->socket_.close(ignored);
    self->event_.cancel();
  });
}

void Connection::close_when_idle() {
  asio::post(executor(), [self = shared_from_this()] {
    if (self->idle_) {
      error_code ignored;
      self->socket_.close(ignored);
    }
  });
}

void Connection::arm(double seconds) {
  deadline_.expires_after(to_duration(seconds));
  deadline_.async_wait([weak = weak_from_this()](error_code code) {
    if (const auto self = weak.lock(); self && !code) {
      error_code ignored;
      self->socket_.close(ignored);
      self->event_.cancel();
    }
  });
}

void Connection::disarm() { deadline_.cancel(); }

asio::awaitable<void> Connection::serve() {
  const auto self = shared_from_this();  // the coroutine keeps the connection alive
  while (socket_.is_open() && !shared_.draining) {
    if (co_await serve_one() == Next::Close) {
      break;
    }
  }
  disarm();
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

asio::awaitable<Connection::Next> Connection::serve_one() {
  const HttpConfig& config = shared_.config;
  error_code code;
  auto token = asio::redirect_error(asio::use_awaitable, code);

  idle_ = true;
  if (buffer_.size() == 0) {  // wait for the first byte of the next request
    arm(config.idle_timeout_seconds);
    const size_t count = co_await socket_.async_read_some(buffer_.prepare(4096), token);
    if (code) {
      co_return Next::Close;
    }
    buffer_.commit(count);
  }
  idle_ = false;

  beast_http::request_parser<beast_http::string_body> parser;
  parser.header_limit(static_cast<uint32_t>(config.max_header_bytes));
  parser.body_limit(config.max_body_bytes);
  arm(config.read_timeout_seconds);
  co_await beast_http::async_read_header(socket_, buffer_, parser, token);
  if (code == beast_http::error::header_limit || code == beast_http::error::buffer_overflow) {
    co_return co_await refuse(
        431, fmt::format("the header is longer than {} bytes", config.max_header_bytes));
  }
  if (code == beast_http::error::body_limit) {
    co_return co_await refuse(
        413, fmt::format("the body is longer than {} bytes", config.max_body_bytes));
  }
  if (code) {
    if (connection_ended(code)) {
      co_return Next::Close;
    }
    co_return co_await refuse(400, "not an HTTP request: " + code.message());
  }
  const auto& fields = parser.get();
  if (fields.find(beast_http::field::transfer_encoding) != fields.end() && !fields.chunked()) {
    // Where such a body ends is unknown: what follows must not be taken for another request.
    co_return co_await refuse(400, "Transfer-Encoding: the last coding must be chunked");
  }
  if (fields.version() >= 11 && fields.count(beast_http::field::host) != 1) {
    co_return co_await refuse(400, "Host: a request of HTTP/1.1 has exactly one");
  }
  if (iequals(fields[beast_http::field::expect], "100-continue")) {
    if (!co_await send("HTTP/1.1 100 Continue\r\n\r\n")) {
      co_return Next::Close;
    }
  }
  BodyLease lease(shared_.bodies);
  while (!parser.is_done()) {
    arm(config.read_timeout_seconds);  // as long as bytes arrive
    co_await beast_http::async_read_some(socket_, buffer_, parser, token);
    if (code == beast_http::error::body_limit) {
      co_return co_await refuse(
          413, fmt::format("the body is longer than {} bytes", config.max_body_bytes));
    }
    if (code && connection_ended(code)) {
      co_return Next::Close;
    }
    if (code) {
      co_return co_await refuse(400, "not an HTTP body: " + code.message());
    }
    if (!lease.grow_to(parser.get().body().size())) {
      co_return co_await refuse(503,
                                fmt::format("the bodies of the requests in flight have reached "
                                            "their limit of {} bytes; try again later",
                                            shared_.bodies->limit_bytes()));
    }
  }
  disarm();
  const bool keep_alive = parser.get().keep_alive();
  const bool http_1_1 = parser.get().version() >= 11;
  co_return co_await answer(to_request(parser.release(), std::move(lease)), keep_alive, http_1_1);
}

std::string Connection::head(int status,
                             std::string_view content_type,
                             std::string_view request_id,
                             bool keep_alive) const {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nServer: {}\r\nConnection: {}\r\n",
                                 status,
                                 reason_phrase(status),
                                 shared_.config.server_name,
                                 keep_alive ? "keep-alive" : "close");
  if (!content_type.empty()) {
    text += fmt::format("Content-Type: {}\r\n", content_type);
  }
  if (!request_id.empty()) {
    text += fmt::format("X-Request-Id: {}\r\n", request_id);
  }
  return text;
}

asio::awaitable<Connection::Next> Connection::answer(Request request,
                                                     bool keep_alive,
                                                     bool http_1_1) {
  const std::string id = request.id;
  const bool is_head = request.method == "HEAD";
  // The weak pointer: a handler may hold on to the exchange longer than the connection lives.
  auto state = std::make_shared<ExchangeState>([weak = weak_from_this(), strand = executor()] {
    asio::post(strand, [weak] {
      if (const auto self = weak.lock()) {
        self->event_.cancel();
      }
    });
  });
  watch(state);
  shared_.handler(std::make_shared<Exchange>(std::move(request), state));

  bool chunked = false;
  bool failed = false;
  for (bool finished = false; !finished && !failed;) {
    ExchangeState::News news = co_await wait_for_news(*state);
    if (gone_ || !socket_.is_open()) {
      failed = true;
      break;
    }
    finished = news.finished;
    keep_alive = keep_alive && !shared_.draining;
    std::string bytes;
    if (news.response) {
      const Response& response = *news.response;
      bytes = head(response.status, response.content_type, id, keep_alive);
      for (const Header& header : response.headers) {
        bytes += fmt::format("{}: {}\r\n", header.name, header.value);
      }
      // A 204 has no body, and must not have a length either (RFC 9110, section 8.6).
      bytes += response.status == 204
                   ? "\r\n"
                   : fmt::format("Content-Length: {}\r\n\r\n", response.body.size());
      if (!is_head) {
        bytes += response.body;
      }
    } else {
      if (news.stream_opened) {
        chunked = http_1_1;
        keep_alive = keep_alive && chunked;
        bytes = head(200, *news.stream_opened, id, keep_alive) + "Cache-Control: no-cache\r\n" +
                (chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
      }
      if (!chunked) {
        bytes += news.bytes;
      } else if (!news.bytes.empty()) {
        bytes += fmt::format("{:x}\r\n", news.bytes.size()) + news.bytes + "\r\n";
      }
      if (finished && chunked) {
        bytes += "0\r\n\r\n";
      }
    }
    failed = !bytes.empty() && !co_await send(std::move(bytes));
  }
  if (failed) {
    error_code ignored;
    socket_.close(ignored);
    state->mark_disconnected();
  }
  state->detach();
  co_await stop_watching();
  co_return failed || gone_ || !keep_alive ? Next::Close : Next::KeepAlive;
}

asio::awaitable<ExchangeState::News> Connection::wait_for_news(ExchangeState& state) {
  for (;;) {
    ExchangeState::News news = state.take_news();
    if (gone_ || !socket_.is_open() || news.finished || news.response || news.stream_opened ||
        !news.bytes.empty()) {
      co_return news;
    }
    // Wakes are posted to this strand, so none is lost between the look and the wait.
    error_code ignored;
    event_.expires_at(std::chrono::steady_clock::time_point::max());
    co_await event_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

void Connection::watch(std::shared_ptr<ExchangeState> state) {
  if (buffer_.size() >= kReadAheadBytes) {
    return;  // enough read ahead; a failing write will tell
  }
  watching_ = true;
  socket_.async_read_some(
      buffer_.prepare(std::min<size_t>(4096, kReadAheadBytes - buffer_.size())),
      asio::bind_cancellation_slot(
          stop_watch_.slot(),
          [self = shared_from_this(), state = std::move(state)](error_code code, size_t count) {
            self->watching_ = false;
            if (!code) {
              self->buffer_.commit(count);
              self->watch(state);
              return;
            }
            if (code != asio::error::operation_aborted || !self->socket_.is_open()) {
              self->gone_ = true;
              state->mark_disconnected();
            }
            self->event_.cancel();
          }));
}

asio::awaitable<void> Connection::stop_watching() {
  while (watching_) {
    stop_watch_.emit(asio::cancellation_type::terminal);
    if (!watching_) {
      break;
    }
    error_code ignored;
    event_.expires_after(std::chrono::seconds(1));
    co_await event_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

asio::awaitable<bool> Connection::send(std::string bytes) {
  error_code code;
  size_t done = 0;
  while (done < bytes.size() && !code) {  // in pieces, so that the timeout is about progress
    arm(shared_.config.write_timeout_seconds);
    done +=
        co_await socket_.async_write_some(asio::buffer(bytes.data() + done, bytes.size() - done),
                                          asio::redirect_error(asio::use_awaitable, code));
  }
  disarm();
  co_return !code;
}

asio::awaitable<Connection::Next> Connection::refuse(int status, std::string message) {
  const std::string body = error_body(status, message, "", ErrorShape::Both);
  std::string bytes = head(status, "application/json", make_request_id(""), false);
  bytes += fmt::format("Content-Length: {}\r\n\r\n{}", body.size(), body);
  if (co_await send(std::move(bytes))) {
    co_await discard_input();
  }
  co_return Next::Close;
}

// Closing with unread input resets the connection, and the client may lose the answer: read on for
// a moment.
asio::awaitable<void> Connection::discard_input() {
  error_code code;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, code);
  arm(kLingerSeconds);
  std::string sink(size_t{64} << 10, '\0');
  for (size_t total = 0; !code && total < kLingerBytes;) {
    total += co_await socket_.async_read_some(asio::buffer(sink),
                                              asio::redirect_error(asio::use_awaitable, code));
  }
  disarm();
}

}  // namespace nibble::server::http
