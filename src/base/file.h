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

// Which file it was and when it was written last.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size_bytes = 0;
  int64_t modified_ns = 0;
  bool operator==(const FileStamp&) const = default;
};

class ReadFile {  // move-only owner of a descriptor; const reads are thread-safe
 public:
  static Result<ReadFile> open(const std::string& path);
  ReadFile(ReadFile&& other) noexcept;
  ReadFile& operator=(ReadFile&& other) noexcept;
  ReadFile(const ReadFile&) = delete;
  ReadFile& operator=(const ReadFile&) = delete;
  ~ReadFile();

  const std::string& path() const { return path_; }
  uint64_t size_bytes() const { return stamp_.size_bytes; }  // at open time
  const FileStamp& stamp() const { return stamp_; }          // at open time
  // Fails when the open file was written to or cut since it was opened. (Its name may be gone, or
  // mean another file by now: that changes nothing here.)
  Result<void> require_unchanged() const;
  // Fills `out` from `offset`; an early end of file is an error that says how much was there.
  Result<void> read_at(uint64_t offset, std::span<std::byte> out) const;

 private:
  ReadFile(std::string path, int descriptor, const FileStamp& stamp);
  std::string path_;
  int descriptor_ = -1;
  FileStamp stamp_;
};

Result<std::string> read_text_file(const std::string& path, size_t max_bytes);
// Writes to a temporary file beside `path` and renames it; throws SystemError when the disk fails.
void write_file_atomically(const std::string& path, std::string_view content);
bool file_exists(const std::string& path);
bool directory_exists(const std::string& path);

}  // namespace nibble
