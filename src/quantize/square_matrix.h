// A square matrix of floats whose rows start on an odd number of cache lines, so that walking down
// a column meets every set of the cache; rows are padded to whole panels.
#pragma once

#include <cstdint>
#include <vector>

#include "quantize/panel_abi.h"

namespace nibble::quantize {

class SquareMatrix {
 public:
  SquareMatrix() = default;
  // n: a multiple of 16. Zeros.
  explicit SquareMatrix(int64_t n)
      : n_(n),
        stride_((n + kLanes - 1) / kLanes * kLanes + kPanelBlock),
        data_(static_cast<size_t>(n * stride_), 0.0f) {}

  int64_t n() const { return n_; }
  int64_t stride() const { return stride_; }
  bool empty() const { return data_.empty(); }
  float* data() { return data_.data(); }
  const float* data() const { return data_.data(); }
  float* row(int64_t i) { return data_.data() + i * stride_; }
  const float* row(int64_t i) const { return data_.data() + i * stride_; }
  float& at(int64_t i, int64_t j) { return row(i)[j]; }
  float at(int64_t i, int64_t j) const { return row(i)[j]; }

 private:
  int64_t n_ = 0;
  int64_t stride_ = 0;
  std::vector<float> data_;
};

}  // namespace nibble::quantize
