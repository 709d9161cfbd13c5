// Memory of large arrays, kept from one use to the next: a run needs the same few sizes layer after
// layer, and memory that comes fresh from the system costs more than what is done with it.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace nibble::quantize {

// Any thread. Blocks must come back before this ends.
class LargeBlocks {
 public:
  // Smaller ones are not kept.
  static constexpr size_t kSmallest = size_t{1} << 20;

  LargeBlocks() = default;
  LargeBlocks(const LargeBlocks&) = delete;
  LargeBlocks& operator=(const LargeBlocks&) = delete;
  ~LargeBlocks();

  // Aligned to a large page where the system has any. Throws std::bad_alloc.
  void* take(size_t bytes);
  void give(void* block);
  // Gives what nobody uses back to the system.
  void release();

  size_t held_bytes() const;  // in use or not

 private:
  mutable std::mutex mutex_;
  std::multimap<size_t, void*> free_;  // by size
  std::map<void*, size_t> used_;
  size_t held_bytes_ = 0;
};

}  // namespace nibble::quantize
