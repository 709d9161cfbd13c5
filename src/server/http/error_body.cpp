#include "server/http/error_body.h"

#include <boost/json.hpp>

namespace nibble::server::http {

namespace json = boost::json;

namespace {

std::string_view error_type(int status) {
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
    case 431:
      return "request_too_large";
    case 499:
      return "cancelled";
    case 501:
      return "not_implemented";
    case 503:
      return "service_unavailable";
    default:  // who failed, at least: clients do not repeat a request that is wrong
      return status < 500 ? "invalid_request_error" : "internal_server_error";
  }
}

}  // namespace

std::string error_body(int status,
                       std::string_view message,
                       std::string_view param,
                       ErrorShape shape) {
  json::object body{{"object", "error"},
                    {"message", message},
                    {"type", error_type(status)},
                    {"param", nullptr},
                    {"code", status}};
  if (!param.empty()) {
    body["param"] = param;
  }
  if (shape == ErrorShape::Both) {
    body["error"] = json::object{{"message", message}};
  }
  return json::serialize(body);
}

}  // namespace nibble::server::http
