#include "tensor/tensor.h"

namespace nibble {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::string describe(const Tensor& tensor) {
  return to_string(tensor.shape) + " " + std::string(to_string(tensor.dtype));
}

}  // namespace nibble
