#include "support/data_dir.h"

#include <filesystem>

namespace nibble::test {

std::string data_path(const std::string& name) {
  return std::string(NIBBLE_TEST_DATA_DIR) + "/" + name;
}

std::optional<std::string> golden_path(const std::string& name) {
  std::string path = std::string(NIBBLE_SHARED_DIR) + "/golden/" + name;
  if (std::filesystem::exists(path)) {
    return path;
  }
  return std::nullopt;
}

std::optional<std::string> any_golden_path(const std::string& name) {
  if (auto path = golden_path(name)) {
    return path;
  }
  std::string path = data_path("golden/" + name);
  if (std::filesystem::exists(path)) {
    return path;
  }
  return std::nullopt;
}

}  // namespace nibble::test
