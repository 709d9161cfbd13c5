// Owner of host memory that a device copies from and to at full speed, while the host goes on, and
// that its kernels read and write themselves.
// Move-only.
#pragma once

#include <cstddef>
#include <string>

#include "base/error.h"
#include "tensor/device_api.h"

namespace nibble {

class PinnedMemory {
 public:
  PinnedMemory() = default;
  // Fails with the name and the size when there is not enough memory.
  static Result<PinnedMemory> allocate(const std::string& name, size_t size_bytes, Device device);
  PinnedMemory(PinnedMemory&& other) noexcept;
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();

  std::byte* data() const { return data_; }  // nullptr: empty
  size_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  Device device_;
};

}  // namespace nibble
