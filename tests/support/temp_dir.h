// A directory that disappears with the object.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

namespace nibble::test {

class TempDir {
 public:
  TempDir();
  TempDir(TempDir&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TempDir& operator=(TempDir&&) = delete;
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir();

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void write(const std::string& name, const std::string& content) const;
  std::string read(const std::string& name) const;
  // Copies the files of another directory (not its folders) into this one.
  void copy_from(const std::string& directory) const;

 private:
  std::string path_;
};

}  // namespace nibble::test
