// Arrays that start on a cache line, so that no line of a panel straddles two.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "quantize/large_blocks.h"

namespace nibble::quantize {

template <typename T>
class CacheLineAllocator {
 public:
  using value_type = T;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  using is_always_equal = std::false_type;

  // blocks: where large arrays come from, and outlives them; null: from the system.
  CacheLineAllocator(LargeBlocks* blocks = nullptr)  // NOLINT(google-explicit-constructor)
      : blocks_(blocks) {}
  template <typename Other>
  CacheLineAllocator(const CacheLineAllocator<Other>& other)  // NOLINT(google-explicit-constructor)
      : blocks_(other.blocks()) {}

  LargeBlocks* blocks() const { return blocks_; }
  T* allocate(size_t count) {
    return static_cast<T*>(from_blocks(count) ? blocks_->take(count * sizeof(T))
                                              : ::operator new(count * sizeof(T), kAlignment));
  }
  void deallocate(T* at, size_t count) {
    if (from_blocks(count)) {
      blocks_->give(at);
    } else {
      ::operator delete(at, kAlignment);
    }
  }
  // vector(n) leaves the values unset.
  template <typename U>
  void construct(U* /*at*/) {
    static_assert(std::is_trivially_default_constructible_v<U>);
  }
  template <typename U, typename... Args>
  void construct(U* at, const Args&... args) {
    std::construct_at(at, args...);
  }
  friend bool operator==(const CacheLineAllocator& a, const CacheLineAllocator& b) {
    return a.blocks_ == b.blocks_;
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  bool from_blocks(size_t count) const {
    return blocks_ != nullptr && count * sizeof(T) >= LargeBlocks::kSmallest;
  }
  LargeBlocks* blocks_;
};

using AlignedFloats = std::vector<float, CacheLineAllocator<float>>;
using AlignedBytes = std::vector<std::byte, CacheLineAllocator<std::byte>>;

}  // namespace nibble::quantize
