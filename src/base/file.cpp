#include "base/file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nibble {

namespace {

ErrorCode code_of(int error_number) {
  return error_number == ENOENT || error_number == ENOTDIR ? ErrorCode::NotFound
                                                           : ErrorCode::InvalidArgument;
}

FileStamp stamp_of(const struct stat& info) {
  return {static_cast<uint64_t>(info.st_dev),
          static_cast<uint64_t>(info.st_ino),
          static_cast<uint64_t>(info.st_size),
          static_cast<int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec};
}

// Closes on every path out of write_file_atomically.
class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

Result<ReadFile> ReadFile::open(const std::string& path) {
  // Without O_NONBLOCK a named pipe would wait for its writer; regular files do not know it.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const int error_number = errno;
    return fail(
        code_of(error_number), std::string("cannot open: ") + std::strerror(error_number), path);
  }
  struct stat info{};
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(descriptor);
    return invalid("not a regular file", path);
  }
  return ReadFile(path, descriptor, stamp_of(info));
}

ReadFile::ReadFile(std::string path, int descriptor, const FileStamp& stamp)
    : path_(std::move(path)), descriptor_(descriptor), stamp_(stamp) {}

ReadFile::ReadFile(ReadFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      stamp_(other.stamp_) {}

ReadFile& ReadFile::operator=(ReadFile&& other) noexcept {
  if (this != &other) {
    std::swap(path_, other.path_);
    std::swap(descriptor_, other.descriptor_);
    std::swap(stamp_, other.stamp_);
  }
  return *this;
}

ReadFile::~ReadFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

Result<void> ReadFile::read_at(uint64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    // Linux caps one read at 2 GiB; smaller pieces keep interruption handling simple.
    const size_t want = std::min(out.size() - done, size_t{1} << 30);
    const ssize_t got =
        ::pread(descriptor_, out.data() + done, want, static_cast<off_t>(offset + done));
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      return invalid(std::string("read failed: ") + std::strerror(errno), path_);
    }
    if (got == 0) {
      return invalid("file ends at byte " + std::to_string(offset + done) + ", expected " +
                         std::to_string(offset + out.size()) + " (truncated?)",
                     path_);
    }
    done += static_cast<size_t>(got);
  }
  return {};
}

Result<void> ReadFile::require_unchanged() const {
  struct stat info{};
  if (::fstat(descriptor_, &info) != 0) {
    return invalid(std::string("cannot be looked at: ") + std::strerror(errno), path_);
  }
  if (stamp_of(info) == stamp_) {
    return {};
  }
  return invalid(
      "was written to while it was read; write new weights to new files, or rename them "
      "into place",
      path_);
}

Result<std::string> read_text_file(const std::string& path, size_t max_bytes) {
  const ReadFile file = TRY(ReadFile::open(path));
  if (file.size_bytes() > max_bytes) {
    return fail(ErrorCode::TooLarge,
                "file has " + std::to_string(file.size_bytes()) + " bytes, the limit is " +
                    std::to_string(max_bytes),
                path);
  }
  std::string text(file.size_bytes(), '\0');
  TRY(file.read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

void write_file_atomically(const std::string& path, std::string_view content) {
  const std::string temporary = path + ".tmp" + std::to_string(::getpid());
  {
    const Descriptor file(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (file.get() < 0) {
      throw_system_error("cannot create " + temporary, errno);
    }
    size_t done = 0;
    while (done < content.size()) {
      const ssize_t got = ::write(file.get(), content.data() + done, content.size() - done);
      if (got < 0) {
        if (errno == EINTR) {
          continue;
        }
        const int error_number = errno;
        ::unlink(temporary.c_str());
        throw_system_error("cannot write " + temporary, error_number);
      }
      done += static_cast<size_t>(got);
    }
    if (::fsync(file.get()) != 0) {
      throw_system_error("cannot flush " + temporary, errno);
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    throw_system_error("cannot rename to " + path, errno);
  }
}

bool file_exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

bool directory_exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

}  // namespace nibble
