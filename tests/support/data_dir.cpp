#include "support/data_dir.h"

#include <filesystem>
#include <stdexcept>
#include <utility>

namespace nibble::test {

namespace {

// What tests/gpu/bundle.sh put beside the program, where it was carried to another machine.
std::filesystem::path carried_data() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  std::filesystem::path folder = program.parent_path() / "test_data";
  return !error && std::filesystem::exists(folder, error) ? folder : std::filesystem::path();
}

}  // namespace

std::string data_path(const std::string& name) {
  const std::filesystem::path carried = carried_data();
  return carried.empty() ? std::string(NIBBLE_TEST_DATA_DIR) + "/" + name
                         : (carried / name).string();
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

std::string stored_golden_path(const std::string& name) {
  std::optional<std::string> path = any_golden_path(name);
  if (!path) {
    throw std::runtime_error("no golden set in tests/data/golden: " + name);
  }
  return *std::move(path);
}

}  // namespace nibble::test
