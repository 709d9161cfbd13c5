#include "tensor/arena.h"

#include <algorithm>

namespace nibble {

namespace {
constexpr size_t kAlignment = 256;
}

Tensor Arena::take(DType dtype, Shape shape) {
  const auto wanted = static_cast<size_t>(nibble::num_elements(shape) * size_of(dtype));
  const size_t rounded = (wanted + kAlignment - 1) / kAlignment * kAlignment;
  void* data = nullptr;
  if (!measuring()) {
    CHECK(used_bytes_ + rounded <= size_bytes_,
          "scratch memory is too small: ",
          used_bytes_ + rounded,
          " bytes wanted of ",
          size_bytes_);
    data = memory_ + used_bytes_;
  }
  used_bytes_ += rounded;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return {data, dtype, shape, device_};
}

}  // namespace nibble
