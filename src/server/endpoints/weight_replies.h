// What the weight routes have in common: bodies that may be absent, and replies that say in
// themselves whether it worked, in upstream's form.
#pragma once

#include <string>

#include <boost/json.hpp>

#include "base/error.h"
#include "server/endpoint.h"

namespace nibble::server {

// No body is an empty object.
Result<boost::json::value> optional_body(Call& call);
// {"success", "message"} and `extra`: 200, or 400 with the error's text.
void respond_outcome(Call& call,
                     const Result<std::string>& outcome,
                     boost::json::object extra = {});

}  // namespace nibble::server
