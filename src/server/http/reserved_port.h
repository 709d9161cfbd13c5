// An address taken before there is a server to answer on it, so that a busy port or a wrong address
// shows before a model is loaded. Nobody can connect until HttpServer::start listens on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"

namespace nibble::server::http {

// As URLs have it: an IPv6 address in brackets, everything else unchanged.
std::string url_host(const std::string& host);

class ReservedPort {
  struct Impl;

 public:
  // host: an IP address (IPv6 also in brackets), or a name that stands for one; port 0: any free
  // one.
  static Result<ReservedPort> bind(const std::string& host, uint16_t port);
  ReservedPort(ReservedPort&&) noexcept;
  ReservedPort& operator=(ReservedPort&&) noexcept;
  ~ReservedPort();  // gives the port back, unless released

  uint16_t port() const;
  bool is_v6() const;
  int release();  // the bound socket, the caller's to close

 private:
  explicit ReservedPort(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::server::http
