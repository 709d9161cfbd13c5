#include "server/endpoint.h"

#include <boost/json.hpp>

namespace nibble::server {

void respond_json(Call& call, const boost::json::value& body) {
  call.exchange->respond({200, "application/json", boost::json::serialize(body), {}});
}

void respond_text(Call& call, std::string text) {
  call.exchange->respond({200, "text/plain; charset=utf-8", std::move(text), {}});
}

}  // namespace nibble::server
