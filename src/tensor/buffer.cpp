#include "tensor/buffer.h"

#include <utility>

namespace nibble {

Result<Buffer> Buffer::allocate(std::string name, size_t size_bytes, Stream stream) {
  Buffer buffer;
  buffer.name_ = std::move(name);
  buffer.device_ = stream.device;
  buffer.size_bytes_ = size_bytes;
  if (size_bytes == 0) {
    return buffer;
  }
  const DeviceApi& api = device_api(stream.device);
  buffer.data_ = api.allocate(stream.device, size_bytes);
  if (buffer.data_ == nullptr) {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    api.memory_info(stream.device, &free_bytes, &total_bytes);
    return fail(ErrorCode::Overloaded,
                "not enough memory: " + std::to_string(size_bytes) + " bytes wanted, " +
                    std::to_string(free_bytes) + " of " + std::to_string(total_bytes) + " free",
                buffer.name_);
  }
#ifdef NIBBLE_DCHECK
  api.fill_bytes(buffer.data_, 0xFF, size_bytes, stream);
#endif
  return buffer;
}

Buffer Buffer::allocate_or_throw(std::string name, size_t size_bytes, Stream stream) {
  Result<Buffer> buffer = allocate(std::move(name), size_bytes, stream);
  if (!buffer) {
    throw SystemError(buffer.error().text());
  }
  return std::move(*buffer);
}

Buffer::Buffer(Buffer&& other) noexcept
    : name_(std::move(other.name_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      device_(other.device_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(device_, other.device_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    device_api(device_).release(device_, data_);
  }
}

Tensor Buffer::view(DType dtype, Shape shape, size_t offset_bytes) const {
  const auto wanted = static_cast<size_t>(nibble::num_elements(shape) * size_of(dtype));
  CHECK(offset_bytes + wanted <= size_bytes_,
        "view of ",
        wanted,
        " bytes at ",
        offset_bytes,
        " exceeds buffer ",
        name_,
        " of ",
        size_bytes_);
  return {static_cast<std::byte*>(data_) + offset_bytes, dtype, shape, device_};
}

}  // namespace nibble
