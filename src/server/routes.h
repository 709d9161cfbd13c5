// Every URL of the server, one line each, in routes.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "server/endpoint.h"

namespace nibble::server {

enum class Access : uint8_t {
  Open,
  Key,
  Admin
};  // which key a request needs, if one is configured

struct Route {
  std::string_view methods;  // "GET POST"
  std::string_view path;     // a final '*' stands for the rest
  Access access;
  Endpoint endpoint;
  bool may_block = false;  // runs on the admin thread, one at a time, not in the text pool
};

std::span<const Route> routes();

struct Match {
  const Route* route = nullptr;  // nullptr: no such path, or not with this method
  std::string_view allowed;      // methods of the path, when it exists
};
Match find_route(std::string_view method, std::string_view path);

}  // namespace nibble::server
