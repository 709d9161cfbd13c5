// HTTP messages as the endpoints see them: plain values, free of the HTTP library.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/body_budget.h"

namespace nibble::server::http {

struct Header {
  std::string name;
  std::string value;
};

struct Request {
  std::string method;  // "GET"
  std::string path;    // percent-decoded, without the query
  std::string query;   // as sent, without '?'
  std::vector<Header> headers;
  std::string body;
  BodyLease body_lease;  // of the listener's budget
  std::string id;        // X-Request-Id of the client, or made up

  std::string_view header(std::string_view name) const;                 // any case; "" when absent
  std::optional<std::string> query_value(std::string_view name) const;  // percent-decoded
  void drop_body();  // once it was read: its memory goes back, however long the answer takes
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<Header> headers;
};

// "http://host:80/path?query" -> "/path?query": what a client sends that takes the server for a
// proxy, and every server must accept (RFC 9112, section 3.2.2). Other targets stay as they are.
std::string origin_form(std::string_view target);

std::string random_id();  // 32 hex digits

std::string_view reason_phrase(int status);

// "%41+b" -> "A b" in queries; '+' stays in paths. A broken escape stays as it is.
std::string percent_decode(std::string_view text, bool plus_is_space);

}  // namespace nibble::server::http
