// Sizes of up to four dimensions, without heap memory: copied into kernels by value.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

namespace nibble {

inline constexpr int kMaxRank = 4;

struct Shape {
  std::array<int64_t, kMaxRank> dim{};
  uint8_t rank = 0;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<int64_t> sizes) {
    for (int64_t size : sizes) {
      if (rank < kMaxRank) {
        dim[rank++] = size;
      }
    }
  }
  constexpr int64_t operator[](int index) const { return dim[static_cast<size_t>(index)]; }
  constexpr int64_t& operator[](int index) { return dim[static_cast<size_t>(index)]; }
  constexpr bool operator==(const Shape&) const = default;
};

constexpr int64_t num_elements(const Shape& shape) {
  int64_t count = 1;
  for (int i = 0; i < shape.rank; ++i) {
    count *= shape[i];
  }
  return count;
}

// Strides of a contiguous row-major tensor, in elements.
constexpr Shape row_major_strides(const Shape& shape) {
  Shape stride = shape;
  int64_t step = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    stride[i] = step;
    step *= shape[i];
  }
  return stride;
}

}  // namespace nibble
