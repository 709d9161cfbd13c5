// Keeps a folder for one run at a time: a lock on the directory itself, which ends with the process
// however it ends.
#pragma once

#include <string>

#include "base/error.h"

namespace nibble::quantize {

class FolderLock {  // move-only
 public:
  // Makes the folder where there is none. Fails when another run holds it, or when `path` is no
  // directory. File systems without locks give none, and no error. Throws SystemError when the
  // folder cannot be made.
  static Result<FolderLock> take(const std::string& path);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  explicit FolderLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

}  // namespace nibble::quantize
