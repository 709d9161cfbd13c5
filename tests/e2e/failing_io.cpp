// Preloaded into the program by quantize_test.py: a disk that fails. Weights below a folder
// named "unreadable" give EIO when they are read, those below "full-disk" ENOSPC once a megabyte is
// written; a folder named "disk-of-N" seems to have N bytes free.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <unistd.h>

namespace {

constexpr size_t kDiskBytes = 1 << 20;
size_t written = 0;

bool is_below(int descriptor, const char* folder, const char* name = "") {
  char link[64];
  char path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size <= 0) {
    return false;
  }
  path[size] = 0;
  return std::strstr(path, folder) != nullptr && std::strstr(path, name) != nullptr;
}

template <typename Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

bool full(int descriptor, size_t size) {
  if (!is_below(descriptor, "/full-disk/")) {
    return false;
  }
  written += size;
  return written > kDiskBytes;
}

ssize_t fail(int error) {
  errno = error;
  return -1;
}

}  // namespace

extern "C" {

ssize_t pread(int descriptor, void* out, size_t size, off_t offset) {
  return is_below(descriptor, "/unreadable/", ".safetensors")
             ? fail(EIO)
             : real<ssize_t (*)(int, void*, size_t, off_t)>("pread")(descriptor, out, size, offset);
}

ssize_t pread64(int descriptor, void* out, size_t size, off_t offset) {
  return pread(descriptor, out, size, offset);
}

ssize_t write(int descriptor, const void* data, size_t size) {
  return full(descriptor, size)
             ? fail(ENOSPC)
             : real<ssize_t (*)(int, const void*, size_t)>("write")(descriptor, data, size);
}

ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  return full(descriptor, size) ? fail(ENOSPC)
                                : real<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite")(
                                      descriptor, data, size, offset);
}

ssize_t pwrite64(int descriptor, const void* data, size_t size, off_t offset) {
  return pwrite(descriptor, data, size, offset);
}

int statvfs(const char* path, struct statvfs* out) {
  const int result = real<int (*)(const char*, struct statvfs*)>("statvfs")(path, out);
  constexpr const char* kFolder = "disk-of-";
  if (const char* found = std::strstr(path, kFolder); found != nullptr && result == 0) {
    out->f_frsize = 1;
    out->f_bavail = std::strtoull(found + std::strlen(kFolder), nullptr, 10);
  }
  return result;
}

int statvfs64(const char* path, struct statvfs64* out) {
  return statvfs(path,
                 reinterpret_cast<struct statvfs*>(out));  // one layout where long has 64 bits
}

}  // extern "C"
