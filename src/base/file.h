// Files: positional reads (never a mapping: a file truncated in place would turn a mapping into a
// crash), whole small text files, and writes that appear whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace nibble {

class ReadFile {  // move-only owner of a descriptor; const reads are thread-safe
 public:
  static Result<ReadFile> open(const std::string& path);
  ReadFile(ReadFile&& other) noexcept;
  ReadFile& operator=(ReadFile&& other) noexcept;
  ReadFile(const ReadFile&) = delete;
  ReadFile& operator=(const ReadFile&) = delete;
  ~ReadFile();

  const std::string& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; }  // at open time
  // Fills `out` from `offset`; an early end of file is an error that says how much was there.
  Result<void> read_at(uint64_t offset, std::span<std::byte> out) const;

 private:
  ReadFile(std::string path, int descriptor, uint64_t size_bytes);
  std::string path_;
  int descriptor_ = -1;
  uint64_t size_bytes_ = 0;
};

Result<std::string> read_text_file(const std::string& path, size_t max_bytes);
// Writes to a temporary file beside `path` and renames it; throws SystemError when the disk fails.
void write_file_atomically(const std::string& path, std::string_view content);
bool file_exists(const std::string& path);
bool directory_exists(const std::string& path);

}  // namespace nibble
