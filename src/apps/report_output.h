// Where a command leaves what it found: a text on stdout, and JSON in the file that --json names.
#pragma once

#include <cstdio>
#include <string>

#include <boost/json/value.hpp>
#include <fmt/format.h>

#include "apps/commands.h"
#include "base/error.h"

namespace nibble::apps {

// A file appears whole or not at all; a pipe or a device (/dev/stdout) is written to, not replaced.
// Throws SystemError.
void write_json(const std::string& path, const boost::json::value& value);

// The exit code. `Report` has to_text() and to_json() beside it.
template <typename Report>
int publish(const Result<Report>& report, const std::string& json_path) {
  if (!report) {
    return report_error(report.error());
  }
  fmt::print("{}", to_text(*report));
  if (!json_path.empty()) {
    std::fflush(stdout);  // it may be the same file
    write_json(json_path, to_json(*report));
  }
  return 0;
}

}  // namespace nibble::apps
