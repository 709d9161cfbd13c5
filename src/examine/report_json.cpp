#include "examine/report_json.h"

namespace nibble::examine {

boost::json::value number_or_null(double value) {
  return value > 0 ? boost::json::value(value) : boost::json::value(nullptr);
}

}  // namespace nibble::examine
