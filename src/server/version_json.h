// Which weights made an answer, in the words of both APIs.
#pragma once

#include <boost/json/object.hpp>

#include "server/generation.h"

namespace nibble::server {

// weight_version (of the last token), weight_versions (how many tokens each made, in their order),
// and prefix_weight_versions where an update asked to reuse older prefixes.
void add_weight_versions(const Sequence& sequence, boost::json::object& meta);

}  // namespace nibble::server
