// A Hessian made ready for GPTQ: damped, its columns in processing order, with its triangular
// factor. Made once for all matrices that share an input.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "quantize/panel.h"
#include "quantize/square_matrix.h"

namespace nibble::quantize {

// H = T T^T, T upper triangular. The inverse of H is never made: with V = T / diag(T), GPTQ rounds
// w_k + sum over j < k of e_j V_jk, e the errors of the columns before.
struct Factored {
  std::vector<int32_t> order;  // position -> column; blocks of 16 stay whole
  BlockMatrix hessian;         // permuted and damped
  BlockMatrix feedback;        // V + V^T - 1
  std::vector<float> cost;     // [k] T_kk^2
  float damping = 0;           // what was added to the diagonal
};

// A Hessian, of the input divided by a scale a channel where there is one: H / (s s^T).
struct ScaledHessian {
  const SquareMatrix& hessian;
  const std::vector<float>* scale = nullptr;  // [k]

  float at(int64_t i, int64_t j) const {
    const float value = hessian.at(i, j);
    // The divisor is symmetric in i and j, so the matrix is symmetric bit for bit.
    return scale == nullptr
               ? value
               : value / ((*scale)[static_cast<size_t>(i)] * (*scale)[static_cast<size_t>(j)]);
  }
};

// Blocks of 16 columns by falling mean of the diagonal, columns inside a block by falling diagonal;
// equals by rising index.
std::vector<int32_t> processing_order(const ScaledHessian& input);

// Damps by 1 % of the mean of the diagonal; where that is not positive definite in FP32, by four
// times as much, and so on. A column that is never used (diagonal 0) gets 1. Fails where FP32
// cannot hold what comes of it: squares close to its end, or a scale that takes them past it.
Result<Factored> factorize(const ScaledHessian& input, const Compute& compute);

// Undamped, columns as they are: of each 16 columns the rows from their own on, all that an energy
// reads; the rest stays unset. memory: what an earlier call returned, to be written over.
BlockMatrix blocks_of(const ScaledHessian& input, const Compute& compute, BlockMatrix memory = {});

}  // namespace nibble::quantize
