#include "quantize/large_blocks.h"

#include <new>

#include <sys/mman.h>

#include "base/check.h"

namespace nibble::quantize {

namespace {

constexpr size_t kPage = size_t{2} << 20;
// A block serves requests down to this part of its size.
constexpr size_t kFill = 2;

}  // namespace

LargeBlocks::~LargeBlocks() {
  CHECK(used_.empty(), "large blocks are still in use: ", used_.size());
  release();
}

void* LargeBlocks::take(size_t bytes) {
  const size_t wanted = (bytes + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(mutex_);
  if (const auto found = free_.lower_bound(wanted);
      found != free_.end() && found->first <= wanted * kFill) {
    void* const block = found->second;
    used_.emplace(block, found->first);
    free_.erase(found);
    return block;
  }
  void* const block = ::operator new(wanted, std::align_val_t{kPage});
  madvise(block, wanted, MADV_HUGEPAGE);  // a hint: failure only costs speed
  used_.emplace(block, wanted);
  held_bytes_ += wanted;
  return block;
}

void LargeBlocks::give(void* block) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(block);
  CHECK(found != used_.end(), "not a block of these");
  free_.emplace(found->second, block);
  used_.erase(found);
}

void LargeBlocks::release() {
  const std::lock_guard lock(mutex_);
  for (const auto& [bytes, block] : free_) {
    ::operator delete(block, std::align_val_t{kPage});
    held_bytes_ -= bytes;
  }
  free_.clear();
}

size_t LargeBlocks::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return held_bytes_;
}

}  // namespace nibble::quantize
