#include "tensor/buffer.h"

#include <utility>

namespace nibble {

Result<Buffer> Buffer::allocate(std::string name, size_t size_bytes, Stream stream) {
  Buffer buffer;
  buffer.name_ = std::move(name);
  buffer.device_ = stream.device;
  buffer.size_bytes_ = size_bytes;
  TRY(buffer.take(stream));
  return buffer;
}

Result<Buffer> Buffer::allocate_fixed(std::string name, size_t size_bytes, Stream stream) {
  Buffer buffer;
  buffer.name_ = std::move(name);
  buffer.device_ = stream.device;
  buffer.size_bytes_ = size_bytes;
  const DeviceApi& api = device_api(stream.device);
  if (api.reserve != nullptr && size_bytes > 0) {
    buffer.range_ = api.reserve(stream.device, size_bytes);
  }
  TRY(buffer.take(stream));
  return buffer;
}

Buffer Buffer::allocate_or_throw(std::string name, size_t size_bytes, Stream stream) {
  Result<Buffer> buffer = allocate(std::move(name), size_bytes, stream);
  if (!buffer) {
    throw SystemError(buffer.error().text());
  }
  return std::move(*buffer);
}

Result<void> Buffer::take(Stream stream) {
  if (size_bytes_ == 0) {
    return {};
  }
  const DeviceApi& api = device_api(device_);
  if (range_ == nullptr) {
    data_ = api.allocate(device_, size_bytes_);
  } else if (api.map(device_, range_, size_bytes_)) {
    data_ = range_;
  }
  if (data_ == nullptr) {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    api.memory_info(device_, &free_bytes, &total_bytes);
    return fail(ErrorCode::Overloaded,
                "not enough memory: " + std::to_string(size_bytes_) + " bytes wanted, " +
                    std::to_string(free_bytes) + " of " + std::to_string(total_bytes) + " free",
                name_);
  }
#ifdef NIBBLE_DCHECK
  api.fill_bytes(data_, 0xFF, size_bytes_, stream);
#else
  (void)stream;
#endif
  return {};
}

void Buffer::give_back() noexcept {
  if (data_ == nullptr) {
    return;
  }
  const DeviceApi& api = device_api(device_);
  if (range_ != nullptr) {
    api.unmap(device_, range_, size_bytes_);
  } else {
    api.release(device_, data_);
  }
  data_ = nullptr;
}

void Buffer::drop() { give_back(); }

Result<void> Buffer::restore(Stream stream) {
  CHECK(data_ == nullptr, "restored without being dropped: ", name_);
  return take(stream);
}

Buffer::Buffer(Buffer&& other) noexcept
    : name_(std::move(other.name_)),
      range_(std::exchange(other.range_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      device_(other.device_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(range_, other.range_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(device_, other.device_);
  return *this;
}

Buffer::~Buffer() {
  give_back();
  if (range_ != nullptr) {
    device_api(device_).free_range(device_, range_, size_bytes_);
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
