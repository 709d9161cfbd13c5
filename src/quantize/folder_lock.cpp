#include "quantize/folder_lock.h"

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nibble::quantize {

namespace {

// Whether `path` still means the folder that is open: the run before may have removed it.
bool is_there(int descriptor, const std::string& path) {
  struct stat opened{};
  struct stat named{};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

Result<FolderLock> FolderLock::take(const std::string& path) {
  for (;;) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) {
      if (errno == ENOENT && !error) {
        continue;  // another run has just removed it
      }
      if (errno == ENOTDIR) {
        return invalid("is in the way of the unfinished result, and no directory; move it", path);
      }
      throw_system_error("cannot create " + path, error ? error.value() : errno);
    }
    FolderLock lock(descriptor);
    int locked = 0;
    do {
      locked = ::flock(descriptor, LOCK_EX | LOCK_NB);
    } while (locked != 0 && errno == EINTR);
    if (locked != 0 && errno == EWOULDBLOCK) {
      return invalid(
          "another run is making this result; wait for it, or choose another destination", path);
    }
    if (is_there(descriptor, path)) {
      return lock;
    }
  }
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

}  // namespace nibble::quantize
