// Owner of device memory: move-only, named for the memory report. Test builds fill new memory with
// 0xFF (NaN in every float format here), so that reading before writing shows.
#pragma once

#include <cstddef>
#include <string>

#include "base/error.h"
#include "tensor/device_api.h"
#include "tensor/tensor.h"

namespace nibble {

class Buffer {
 public:
  Buffer() = default;
  // Fails with the name and both sizes when there is not enough memory.
  static Result<Buffer> allocate(std::string name, size_t size_bytes, Stream stream);
  // For start-up: throws SystemError instead.
  static Buffer allocate_or_throw(std::string name, size_t size_bytes, Stream stream);
  // Memory that can be given back and taken again at the same address, where the device has such a
  // thing; elsewhere the address may change.
  static Result<Buffer> allocate_fixed(std::string name, size_t size_bytes, Stream stream);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  // Gives the memory of a fixed buffer back, and takes it again with undefined contents.
  void drop();
  Result<void> restore(Stream stream);

  void* data() const { return data_; }  // nullptr while dropped
  size_t size_bytes() const { return size_bytes_; }
  const std::string& name() const { return name_; }
  Device device() const { return device_; }
  // A contiguous view at a byte offset; checked against the size.
  Tensor view(DType dtype, Shape shape, size_t offset_bytes = 0) const;

 private:
  Result<void> take(Stream stream);
  void give_back() noexcept;

  std::string name_;
  void* range_ = nullptr;  // of a fixed buffer, where the device has ranges
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
  Device device_;
};

}  // namespace nibble
