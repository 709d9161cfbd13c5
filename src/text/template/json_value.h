// JSON -> template values.
#pragma once

#include <cstdint>

#include <boost/json.hpp>

#include "text/template/value.h"

namespace nibble::text::jinja {

// Adds the size of what was converted to `input_bytes`. Strings that are not UTF-8 are repaired.
// Throws TemplateError when values nest too deep.
Value from_json(const boost::json::value& value, uint64_t& input_bytes);

}  // namespace nibble::text::jinja
