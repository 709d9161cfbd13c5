#include "apps/report_output.h"

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "quantize/write.h"

namespace nibble::apps {

void write_json(const std::string& path, const boost::json::value& value) {
  const std::string text = quantize::pretty_json(value);
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) {
    write_file_atomically(path, text);
    return;
  }
  std::ofstream file(path);
  if (!(file << text).flush()) {
    throw SystemError("cannot write " + path);
  }
}

}  // namespace nibble::apps
