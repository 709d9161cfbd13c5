// What the reports of this folder have in common as JSON.
#pragma once

#include <boost/json/value.hpp>

namespace nibble::examine {

// A measured quantity; null where it is not positive: nothing was measured, or it does not apply.
boost::json::value number_or_null(double value);

}  // namespace nibble::examine
