#include "server/api_error.h"

#include <boost/json.hpp>

#include "server/http/error_body.h"
#include "server/utf8.h"

namespace nibble::server {

namespace json = boost::json;

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

http::Response error_response(const Error& error, ApiStyle style, std::optional<int> status) {
  http::Response response{status.value_or(http_status(error.code)), "application/json", {}, {}};
  response.body =
      http::error_body(response.status,
                       to_valid_utf8(error.text()),
                       to_valid_utf8(error.where),
                       style == ApiStyle::OpenAi ? http::ErrorShape::Flat : http::ErrorShape::Both);
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
