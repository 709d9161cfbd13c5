// What an endpoint is: a function that runs on the request's queue in the text pool, and either
// answers through the exchange (now or later) or returns the error that becomes the answer.
#pragma once

#include "base/error.h"
#include "server/context.h"
#include "server/http/exchange.h"

namespace nibble::server {

struct Call {
  ServerContext& context;
  http::ExchangePtr exchange;  // shared: answered later, by whoever holds it last
  TaskPool::Queue queue;       // where later work of this request runs

  const http::Request& request() const { return exchange->request(); }
};

using Endpoint = Result<void> (*)(Call& call);

// One answer, as JSON.
void respond_json(Call& call, const boost::json::value& body);
void respond_text(Call& call, std::string text);

}  // namespace nibble::server
