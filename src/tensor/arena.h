// Planned scratch memory. A forward runs twice over the same code: once measuring (tensors without
// data, kernels not run) to learn the peak, then for real over one fixed buffer. Stack discipline:
// a Scope gives back what was taken inside it. One owner thread.
#pragma once

#include <cstddef>

#include "tensor/tensor.h"

namespace nibble {

class Arena {
 public:
  // Measuring arena: take() returns tensors with null data.
  explicit Arena(Device device) : device_(device) {}
  Arena(void* memory, size_t size_bytes, Device device)
      : memory_(static_cast<std::byte*>(memory)), size_bytes_(size_bytes), device_(device) {}

  bool measuring() const { return memory_ == nullptr; }
  size_t peak_bytes() const { return peak_bytes_; }
  Tensor take(DType dtype, Shape shape);

  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.used_bytes_) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { arena_.used_bytes_ = mark_; }

   private:
    Arena& arena_;
    size_t mark_;
  };

 private:
  std::byte* memory_ = nullptr;
  size_t size_bytes_ = 0;
  size_t used_bytes_ = 0;
  size_t peak_bytes_ = 0;
  Device device_;
};

}  // namespace nibble
