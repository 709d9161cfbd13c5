// A Hessian made ready for GPTQ: damped, its columns in processing order, with the upper Cholesky
// factor of its inverse. Made once for all matrices that share an input.
#pragma once

#include <cstdint>
#include <vector>

#include "quantize/panel.h"
#include "quantize/square_matrix.h"

namespace nibble::quantize {

struct Factored {
  std::vector<int32_t> order;  // position -> column; blocks of 16 stay whole
  SquareMatrix hessian;        // permuted and damped
  SquareMatrix factor;         // U: H^-1 = U^T U, upper; below the diagonal zero
  float damping = 0;           // what was added to the diagonal
};

// Blocks of 16 columns by falling mean of the diagonal, columns inside a block by falling diagonal;
// equals by rising index.
std::vector<int32_t> processing_order(const SquareMatrix& hessian);

// Damps by 1 % of the mean of the diagonal; where that is not positive definite in FP32, by four
// times as much, and so on. A column that is never used (diagonal 0) gets 1.
Factored factorize(const SquareMatrix& hessian, const Compute& compute);

// The same for the input divided by a scale a channel: H / (s s^T). scale: [k].
SquareMatrix scaled_hessian(const SquareMatrix& hessian, const std::vector<float>& scale);

}  // namespace nibble::quantize
