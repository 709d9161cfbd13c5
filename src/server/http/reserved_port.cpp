#include "server/http/reserved_port.h"

#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

namespace nibble::server::http {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

struct ReservedPort::Impl {
  asio::io_context io;
  tcp::acceptor acceptor{io};
  tcp::endpoint endpoint;
};

namespace {

Result<asio::ip::address> resolve(asio::io_context& io, const std::string& host) {
  error_code code;
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  auto address = asio::ip::make_address(bracketed ? host.substr(1, host.size() - 2) : host, code);
  if (!code) {
    return address;
  }
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, "", code);
  if (code || found.empty()) {
    return invalid("expected an IP address or a name of this machine, found '" + host + "'",
                   "host");
  }
  for (const auto& entry : found) {  // clients that are told a name try IPv4 as well
    if (entry.endpoint().address().is_v4()) {
      return entry.endpoint().address();
    }
  }
  return found.begin()->endpoint().address();
}

}  // namespace

std::string url_host(const std::string& host) {
  return host.find(':') == std::string::npos || host.starts_with('[') ? host : "[" + host + "]";
}

ReservedPort::ReservedPort(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ReservedPort::ReservedPort(ReservedPort&&) noexcept = default;
ReservedPort& ReservedPort::operator=(ReservedPort&&) noexcept = default;
ReservedPort::~ReservedPort() = default;

Result<ReservedPort> ReservedPort::bind(const std::string& host, uint16_t port) {
  auto impl = std::make_unique<Impl>();
  impl->endpoint = tcp::endpoint(TRY(resolve(impl->io, host)), port);
  error_code code;
  impl->acceptor.open(impl->endpoint.protocol(), code);
  if (!code) {
    impl->acceptor.set_option(tcp::acceptor::reuse_address(true), code);
  }
  if (!code) {
    impl->acceptor.bind(impl->endpoint, code);
  }
  if (!code) {
    impl->endpoint = impl->acceptor.local_endpoint(code);
  }
  if (code) {
    return invalid(
        "cannot listen on " + url_host(host) + ":" + std::to_string(port) + ": " + code.message(),
        "port");
  }
  return ReservedPort(std::move(impl));
}

uint16_t ReservedPort::port() const { return impl_->endpoint.port(); }

bool ReservedPort::is_v6() const { return impl_->endpoint.address().is_v6(); }

int ReservedPort::release() { return impl_->acceptor.release(); }

}  // namespace nibble::server::http
