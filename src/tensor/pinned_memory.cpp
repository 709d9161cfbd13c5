#include "tensor/pinned_memory.h"

#include <utility>

namespace nibble {

Result<PinnedMemory> PinnedMemory::allocate(const std::string& name,
                                            size_t size_bytes,
                                            Device device) {
  PinnedMemory memory;
  memory.device_ = device;
  memory.size_bytes_ = size_bytes;
  memory.data_ = static_cast<std::byte*>(device_api(device).allocate_pinned(size_bytes));
  if (memory.data_ == nullptr) {
    return fail(ErrorCode::Overloaded,
                "not enough pinned host memory: " + std::to_string(size_bytes) + " bytes wanted",
                name);
  }
  return memory;
}

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(device_, other.device_);
  return *this;
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) {
    device_api(device_).release_pinned(data_);
  }
}

}  // namespace nibble
