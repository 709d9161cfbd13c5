#include "support/temp_dir.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace nibble::test {

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "nibble-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw std::runtime_error("cannot make a temporary directory");
  }
  path_ = pattern;
}

TempDir::~TempDir() {
  if (path_.empty()) {  // moved away
    return;
  }
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

void TempDir::write(const std::string& name, const std::string& content) const {
  std::ofstream(file(name), std::ios::binary) << content;
}

std::string TempDir::read(const std::string& name) const {
  std::ostringstream text;
  text << std::ifstream(file(name), std::ios::binary).rdbuf();
  return text.str();
}

void TempDir::copy_from(const std::string& directory) const {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.is_regular_file()) {
      const auto target = std::filesystem::path(path_) / entry.path().filename();
      std::filesystem::copy_file(
          entry.path(), target, std::filesystem::copy_options::overwrite_existing);
      std::filesystem::permissions(
          target, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
    }
  }
}

}  // namespace nibble::test
