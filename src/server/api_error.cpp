#include "server/api_error.h"

#include <boost/json.hpp>

#include "server/utf8.h"

namespace nibble::server {

namespace json = boost::json;

namespace {

std::string_view openai_type(int status) {
  switch (status) {
    case 400:
      return "Bad Request";
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 405:
      return "method_not_allowed";
    case 413:
      return "request_too_large";
    case 499:
      return "cancelled";
    case 501:
      return "not_implemented";
    case 503:
      return "service_unavailable";
    default:
      return "internal_server_error";
  }
}

}  // namespace

int http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::InvalidArgument:
    case ErrorCode::WrongState:
      return 400;
    case ErrorCode::NotFound:
      return 404;
    case ErrorCode::TooLarge:
      return 413;
    case ErrorCode::Overloaded:
      return 503;
    case ErrorCode::Cancelled:
      return 499;
    case ErrorCode::Unsupported:
      return 501;
    case ErrorCode::Internal:
      return 500;
  }
  return 500;
}

ApiStyle style_of(const std::string& path) {
  return path.starts_with("/v1/") ? ApiStyle::OpenAi : ApiStyle::Native;
}

namespace {

std::string error_body(const Error& error, ApiStyle style, int status) {
  if (style == ApiStyle::Native) {
    return json::serialize(json::object{{"error", {{"message", to_valid_utf8(error.text())}}}});
  }
  json::object body{{"object", "error"},
                    {"message", to_valid_utf8(error.text())},
                    {"type", openai_type(status)},
                    {"param", nullptr},
                    {"code", status}};
  if (!error.where.empty()) {
    body["param"] = to_valid_utf8(error.where);
  }
  return json::serialize(body);
}

}  // namespace

http::Response error_response(const Error& error, ApiStyle style, std::optional<int> status) {
  http::Response response{status.value_or(http_status(error.code)), "application/json", {}, {}};
  response.body = error_body(error, style, response.status);
  if (error.code == ErrorCode::Overloaded) {
    response.headers.push_back({"Retry-After", "1"});
  }
  return response;
}

std::string error_event(const Error& error, ApiStyle style) {
  const int status = http_status(error.code);
  json::object body{{"message", to_valid_utf8(error.text())},
                    {"type", status < 500 ? "invalid_request_error" : "server_error"},
                    {"code", status}};
  if (style == ApiStyle::Native) {
    body["retryable"] = error.code == ErrorCode::Overloaded;
  }
  return "data: " + json::serialize(json::object{{"error", std::move(body)}}) + "\n\n";
}

}  // namespace nibble::server
