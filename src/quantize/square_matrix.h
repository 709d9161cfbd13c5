// Square matrices of floats in the two layouts that the quantizer needs.
#pragma once

#include <cstdint>

#include "quantize/aligned.h"
#include "quantize/panel_abi.h"

namespace nibble::quantize {

// Row-major. Rows start on an odd number of cache lines, so that walking down a column meets every
// set of the cache; they are padded to whole panels.
class SquareMatrix {
 public:
  SquareMatrix() = default;
  // n: a multiple of 16. Zeros.
  explicit SquareMatrix(int64_t n)
      : n_(n), stride_(stride_of(n)), data_(static_cast<size_t>(n * stride_), 0.0f) {}
  // Values and padding are the caller's to set.
  static SquareMatrix unset(int64_t n, LargeBlocks* blocks = nullptr) {
    SquareMatrix result;
    result.n_ = n;
    result.stride_ = SquareMatrix::stride_of(n);
    result.data_ = AlignedFloats(static_cast<size_t>(n * result.stride_), blocks);
    return result;
  }

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
  static int64_t stride_of(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes + kPanelBlock; }

  int64_t n_ = 0;
  int64_t stride_ = 0;
  AlignedFloats data_;
};

// 16 columns side by side, [n / 16][n][16]: a product that makes 16 columns reads one stream.
class BlockMatrix {
 public:
  BlockMatrix() = default;
  // Values are the caller's to set.
  explicit BlockMatrix(int64_t n, LargeBlocks* blocks = nullptr)
      : n_(n), data_(static_cast<size_t>(n * n), blocks) {}

  int64_t n() const { return n_; }
  const float* data() const { return data_.data(); }
  float* column_block(int64_t block) { return data_.data() + block * n_ * kPanelBlock; }
  const float* column_block(int64_t block) const { return data_.data() + block * n_ * kPanelBlock; }
  float& at(int64_t i, int64_t j) {
    return column_block(j / kPanelBlock)[i * kPanelBlock + j % kPanelBlock];
  }
  float at(int64_t i, int64_t j) const {
    return data_[static_cast<size_t>((j / kPanelBlock * n_ + i) * kPanelBlock + j % kPanelBlock)];
  }

 private:
  int64_t n_ = 0;
  AlignedFloats data_;
};

}  // namespace nibble::quantize
