// Floats that start on a cache line, so that no line of a panel straddles two.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <vector>

namespace nibble::quantize {

template <typename T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  CacheLineAllocator() = default;
  template <typename Other>
  CacheLineAllocator(const CacheLineAllocator<Other>&) {}  // NOLINT(google-explicit-constructor)

  T* allocate(size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
  }
  void deallocate(T* at, size_t /*count*/) { ::operator delete(at, kAlignment); }
  // vector(n) leaves the values unset.
  template <typename U>
  void construct(U* /*at*/) {
    static_assert(std::is_trivially_default_constructible_v<U>);
  }
  friend bool operator==(const CacheLineAllocator&, const CacheLineAllocator&) { return true; }
};

using AlignedFloats = std::vector<float, CacheLineAllocator<float>>;

}  // namespace nibble::quantize
