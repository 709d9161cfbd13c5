#include "apps/number_range.h"

#include <limits>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/json.h"

namespace nibble::apps {

namespace {

CLI::Validator validator(double least, double most, const std::string& range) {
  return {
      [least, most, range](std::string& text) {
        double value = 0;
        const bool fits = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
        return fits ? std::string() : fmt::format("expected a number {}, found {}", range, text);
      },
      range};
}

}  // namespace

CLI::Validator number_range(double least, double most) {
  return validator(
      least, most, fmt::format("from {} to {}", format_number(least), format_number(most)));
}

// Up to float's largest: some of these flags end in a float.
CLI::Validator finite_from_zero() {
  return validator(0, std::numeric_limits<float>::max(), "from 0 on");
}

}  // namespace nibble::apps
