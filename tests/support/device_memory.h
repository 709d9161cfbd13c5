// Vectors that kernels of every device of this machine can read and write: pinned host memory where
// there is a GPU, so that a test of the CPU runs on the GPU unchanged.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

#include "tensor/device_api.h"

namespace nibble::test {

inline const DeviceApi& visible_memory_api() {
  const DeviceApi* cuda = find_device_api(Device::Kind::Cuda);
  return cuda != nullptr && cuda->num_devices() > 0 ? *cuda : *find_device_api(Device::Kind::Cpu);
}

template <typename T>
struct VisibleAllocator {
  using value_type = T;
  VisibleAllocator() = default;
  template <typename U>
  explicit VisibleAllocator(const VisibleAllocator<U>& /*other*/) {}
  T* allocate(size_t count) {
    void* memory = visible_memory_api().allocate_pinned(count * sizeof(T));
    if (memory == nullptr) {
      throw std::bad_alloc();
    }
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t /*count*/) { visible_memory_api().release_pinned(memory); }
  bool operator==(const VisibleAllocator& /*other*/) const { return true; }
};

template <typename T>
using VisibleVector = std::vector<T, VisibleAllocator<T>>;

}  // namespace nibble::test
