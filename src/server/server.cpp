#include "server/server.h"

#include <exception>

#include "base/log.h"
#include "server/api_error.h"
#include "server/auth.h"
#include "server/routes.h"

namespace nibble::server {

namespace {

constexpr double kAbortSeconds = 10;  // for aborted requests to come back from the engine

void answer_error(const Call& call, const Error& error) {
  LOG(debug,
      "request refused",
      {"path", call.request().path},
      {"status", http_status(error.code)},
      {"reason", error.text()});
  call.exchange->respond(error_response(error, style_of(call.request().path)));
}

void answer_no_route(http::Exchange& exchange, std::string_view allowed) {
  const http::Request& request = exchange.request();
  if (request.method == "OPTIONS" && request.path == "*") {  // asks after the server as a whole
    exchange.respond({204, "", "", {}});
    return;
  }
  if (allowed.empty()) {
    exchange.respond(error_response({ErrorCode::NotFound, "no such path: " + request.path, {}},
                                    style_of(request.path)));
    return;
  }
  std::string list;
  for (const char c : allowed) {
    list += c == ' ' ? std::string(", ") : std::string(1, c);
  }
  http::Response response{204, "", "", {}};
  if (request.method != "OPTIONS") {
    response = error_response(
        {ErrorCode::InvalidArgument, "expected " + list + ", found " + request.method, {}},
        style_of(request.path),
        405);
  }
  const bool has_head = list.find("GET") != std::string::npos;
  response.headers.push_back({"Allow", list + (has_head ? ", HEAD, OPTIONS" : ", OPTIONS")});
  exchange.respond(std::move(response));
}

// Under /v1, as upstream: a body must say that it is JSON.
Result<void> check_content_type(const http::Request& request) {
  if (request.method != "POST" || !request.path.starts_with("/v1/")) {
    return {};
  }
  const std::string_view type = request.header("Content-Type");
  const std::string_view media = type.substr(0, std::min(type.find(';'), type.size()));
  if (media.starts_with("application/json") || media.ends_with("+json")) {
    return {};
  }
  return invalid("expected the media type application/json, found '" + std::string(type) + "'",
                 "Content-Type");
}

void run_endpoint(const Route& route, Call& call) {
  try {
    const auto result = route.endpoint(call);
    if (!result) {
      answer_error(call, result.error());
    }
    call.exchange->request().drop_body();    // an answer may go on for long
  } catch (const std::exception& failure) {  // out of memory, or a bug: this request only
    LOG(error, "a request failed", {"path", call.request().path}, {"reason", failure.what()});
    answer_error(call, {ErrorCode::Internal, "the server failed to handle the request", {}});
  }
}

}  // namespace

Server::Server(std::unique_ptr<ServerContext> context) : context_(std::move(context)) {}

Server::~Server() { stop(); }

Result<std::unique_ptr<Server>> Server::start(ServerConfig config,
                                              engine::Engine& engine,
                                              const TextModel* text) {
  auto port = TRY(http::ReservedPort::bind(config.http.host, config.http.port));
  return start(std::move(config), engine, text, std::move(port));
}

Result<std::unique_ptr<Server>> Server::start(ServerConfig config,
                                              engine::Engine& engine,
                                              const TextModel* text,
                                              http::ReservedPort port) {
  const http::HttpConfig http_config = config.http;
  auto server =
      std::make_unique<Server>(std::make_unique<ServerContext>(std::move(config), engine, text));
  server->context_->state = ServerState::Serving;
  server->http_ = TRY(http::HttpServer::start(
      http_config,
      [self = server.get()](http::ExchangePtr exchange) { self->handle(std::move(exchange)); },
      std::move(port)));
  return server;
}

void Server::handle(http::ExchangePtr exchange) {
  const Match match = find_route(exchange->request().method, exchange->request().path);
  if (match.route == nullptr) {
    answer_no_route(*exchange, match.allowed);
    return;
  }
  const Route& route = *match.route;
  context_->metrics.count_http_request(route.path);
  if (!is_authorized(context_->config, route.access, exchange->request())) {
    http::Response response =
        error_response({ErrorCode::InvalidArgument, "missing or wrong API key", "Authorization"},
                       style_of(exchange->request().path),
                       401);
    response.headers.push_back({"WWW-Authenticate", "Bearer"});
    exchange->respond(std::move(response));
    return;
  }
  if (context_->state == ServerState::Draining && route.access != Access::Open) {
    exchange->respond(error_response({ErrorCode::Overloaded, "the server is shutting down", {}},
                                     style_of(exchange->request().path)));
    return;
  }
  if (const auto type = check_content_type(exchange->request()); !type) {
    exchange->respond(error_response(type.error(), ApiStyle::OpenAi));
    return;
  }
  TaskPool& pool = route.may_block ? context_->admin_pool : context_->pool;
  TaskPool::Queue queue = pool.make_queue();
  Call call{*context_, std::move(exchange), queue};
  queue.post([&route, call]() mutable { run_endpoint(route, call); });
}

uint16_t Server::port() const { return http_->port(); }

void Server::drain(double timeout_seconds) {
  context_->state = ServerState::Draining;
  if (http_->drain(timeout_seconds)) {
    return;
  }
  LOG(warn, "requests aborted: the time to drain is over", {"requests", context_->live.size()});
  context_->live.cancel_all();
  http_->drain(kAbortSeconds);
}

void Server::stop() {
  if (!http_) {
    return;
  }
  context_->state = ServerState::Draining;
  context_->live.cancel_all();
  context_->engine.cancel_update();  // reading a large checkpoint would hold up the end
  http_->stop();
  context_->live.wait_until_empty(kAbortSeconds);
  http_.reset();
}

}  // namespace nibble::server
