// The report as one page that needs nothing else: tables and plots (inline SVG) of what
// quantization did to each matrix.
#pragma once

#include <string>

#include "quantize/report.h"

namespace nibble::quantize {

std::string to_html(const QuantizeReport& report);

}  // namespace nibble::quantize
