// What calibration learns about the input of a matrix: H = X^T X / tokens, sums per channel. One
// pass over the tokens in steps of any size; the bits depend on the steps, not on the threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quantize/panel.h"
#include "quantize/square_matrix.h"

namespace nibble::quantize {

struct InputStatistics {
  int64_t tokens = 0;
  std::vector<float> mean_magnitude;  // [k] mean |x|
  std::vector<float> mean_square;     // [k] the diagonal of H
  std::vector<float> amax;            // [k] largest |x|
  SquareMatrix hessian;               // [k][k] X^T X / tokens, symmetric; empty when not asked for
};

class StatisticsCollector {
 public:
  StatisticsCollector() = default;
  // width: a multiple of 16.
  StatisticsCollector(int64_t width, bool hessian);

  // rows: pointers to `width` bf16 each.
  void add(std::span<const uint16_t* const> rows, const Compute& compute);
  // X as panels: [width / kLanes, rounded up][rows][kLanes] f32, padding zero. For H alone.
  void add_panels(const float* panels, int64_t rows, const Compute& compute);
  int64_t tokens() const { return tokens_; }
  int64_t width() const { return width_; }
  // The means; the collector is empty afterwards.
  InputStatistics finish(const Compute& compute);

 private:
  int64_t width_ = 0;
  int64_t tokens_ = 0;
  bool wants_hessian_ = false;
  std::vector<double> magnitude_, square_;
  std::vector<float> amax_;
  SquareMatrix& sum(const Compute& compute);

  SquareMatrix sum_;  // upper triangle of X^T X, from the first rows on
  AlignedFloats panels_;
};

}  // namespace nibble::quantize
