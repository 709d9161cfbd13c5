// A view of device memory: pointer, shape, strides in elements, dtype, device. Never an owner
// (Buffer owns), no reference counts, cheap to copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "base/check.h"
#include "tensor/device.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace nibble {

// Storage types by which a tensor may be read: bf16, f16 as uint16_t, one-byte formats as uint8_t.
template <typename T>
constexpr bool stores(DType dtype) {
  using Value = std::remove_const_t<T>;
  switch (dtype) {
    case DType::F32:
      return std::is_same_v<Value, float>;
    case DType::BF16:
    case DType::F16:
      return std::is_same_v<Value, uint16_t>;
    case DType::I64:
      return std::is_same_v<Value, int64_t>;
    case DType::I32:
      return std::is_same_v<Value, int32_t>;
    case DType::I8:
      return std::is_same_v<Value, int8_t>;
    case DType::E4M3:
    case DType::E8M0:
    case DType::E2M1x2:
    case DType::U8:
    case DType::Bool:
      return std::is_same_v<Value, uint8_t>;
  }
  return false;
}

struct Tensor {
  void* data = nullptr;
  Shape shape;
  Shape stride;  // elements
  DType dtype = DType::F32;
  Device device;

  Tensor() = default;
  // A contiguous row-major view.
  Tensor(void* memory, DType type, Shape sizes, Device where)
      : data(memory), shape(sizes), stride(row_major_strides(sizes)), dtype(type), device(where) {}

  bool empty() const { return data == nullptr; }
  int64_t num_elements() const { return nibble::num_elements(shape); }
  int64_t size_bytes() const { return num_elements() * size_of(dtype); }  // of the elements
  bool contiguous() const { return stride == row_major_strides(shape); }

  template <typename T>
  T* as() const {
    CHECK(stores<T>(dtype), "tensor read as another type than it stores: ", to_string(dtype));
    return static_cast<T*>(data);
  }
  // Rows [begin, end) of the first dimension.
  Tensor rows(int64_t begin, int64_t end) const {
    CHECK(shape.rank >= 1 && begin >= 0 && begin <= end && end <= shape[0],
          "row range out of bounds: ",
          begin,
          "..",
          end,
          " of ",
          shape[0]);
    Tensor part = *this;
    part.shape[0] = end - begin;
    if (data != nullptr) {
      part.data = static_cast<std::byte*>(data) + begin * stride[0] * size_of(dtype);
    }
    return part;
  }
  // The same memory with other sizes; contiguous tensors only.
  Tensor reshaped(Shape sizes) const {
    CHECK(contiguous() && nibble::num_elements(sizes) == num_elements(),
          "reshape needs a contiguous tensor of the same size");
    return {data, dtype, sizes, device};
  }
};

std::string to_string(const Shape& shape);   // "[4096, 256]"
std::string describe(const Tensor& tensor);  // "[4096, 256] f8_e4m3"

}  // namespace nibble
