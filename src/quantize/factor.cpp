#include "quantize/factor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "quantize/upper_product.h"

namespace nibble::quantize {

namespace {

constexpr float kDamping = 0.01f;  // of the mean diagonal, as GPTQ (Frantar et al. 2022)
constexpr float kMoreDamping = 4.0f;
constexpr int64_t kPanelRows = 64;    // of a step of the factorization
constexpr int64_t kStripeRows = 256;  // whole steps

double mean_diagonal(const ScaledHessian& input) {
  const int64_t n = input.hessian.n();
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += static_cast<double>(input.at(i, i));
  }
  return sum / static_cast<double>(std::max<int64_t>(n, 1));
}

// The first n values of row `row` of the input in its own order of columns.
void scaled_row(const ScaledHessian& input, int64_t row, int64_t n, float* out) {
  const float* from = input.hessian.row(row);
  if (input.scale == nullptr) {
    std::copy_n(from, n, out);
    return;
  }
  const float* scale = input.scale->data();
  const float own = scale[row];
  for (int64_t i = 0; i < n; ++i) {
    out[i] = from[i] / (own * scale[i]);
  }
}

// Written by rows: a row is read in one stream, and 16 of them fill whole pieces of every block.
BlockMatrix permuted(const ScaledHessian& input,
                     const std::vector<int32_t>& order,
                     const Compute& compute) {
  const int64_t n = input.hessian.n();
  BlockMatrix result(n, compute.blocks);
  compute.pool.parallel_for(n, kPanelBlock, [&](int64_t begin, int64_t end, int /*thread*/) {
    std::vector<float> rows(static_cast<size_t>(n * kPanelBlock));
    for (int64_t first = begin; first < end; first += kPanelBlock) {
      for (int64_t i = 0; i < kPanelBlock; ++i) {
        scaled_row(input, order[static_cast<size_t>(first + i)], n, rows.data() + i * n);
      }
      for (int64_t block = 0; block < n / kPanelBlock; ++block) {
        const int32_t* columns = order.data() + block * kPanelBlock;
        float* out = result.column_block(block) + first * kPanelBlock;
        for (int64_t i = 0; i < kPanelBlock; ++i) {
          for (int64_t j = 0; j < kPanelBlock; ++j) {
            out[i * kPanelBlock + j] = rows[static_cast<size_t>(i * n + columns[j])];
          }
        }
      }
    }
  });
  return result;
}

// Both directions turned round: the upper triangle of J H J, H symmetric. Zeros in the padding and
// in what panels on the diagonal reach below it; the rest of the lower triangle stays unset.
SquareMatrix reversed_upper(const BlockMatrix& hessian, const Compute& compute) {
  const int64_t n = hessian.n();
  SquareMatrix result = SquareMatrix::unset(n, compute.blocks);
  compute.pool.parallel_for(n, kPanelBlock, [&](int64_t begin, int64_t end, int /*thread*/) {
    for (int64_t first = begin; first < end; first += kPanelBlock) {
      for (int64_t i = first; i < first + kPanelBlock; ++i) {
        std::fill(result.row(i) + i / kLanes * kLanes, result.row(i) + first, 0.0f);
        std::fill(result.row(i) + n, result.row(i) + result.stride(), 0.0f);
      }
      for (int64_t column = first; column < n; column += kPanelBlock) {
        const float* tile = hessian.column_block((n - 1 - column) / kPanelBlock) +
                            (n - kPanelBlock - first) * kPanelBlock;
        for (int64_t i = 0; i < kPanelBlock; ++i) {
          for (int64_t j = 0; j < kPanelBlock; ++j) {
            result.at(first + i, column + j) =
                tile[(kPanelBlock - 1 - i) * kPanelBlock + kPanelBlock - 1 - j];
          }
        }
      }
    }
  });
  return result;
}

// Rows [begin, begin + rows) of R with A = R^T R, columns of the diagonal block only, in place.
bool factor_diagonal(SquareMatrix& a, int64_t begin, int64_t rows) {
  for (int64_t k = begin; k < begin + rows; ++k) {
    float* row = a.row(k);
    const float pivot = row[k];
    if (!(pivot > 0.0f) || !std::isfinite(pivot)) {
      return false;
    }
    const float root = std::sqrt(pivot);
    for (int64_t j = k; j < begin + rows; ++j) {
      row[j] /= root;
    }
    for (int64_t i = k + 1; i < begin + rows; ++i) {
      const float factor = row[i];
      float* other = a.row(i);
      for (int64_t j = i; j < begin + rows; ++j) {
        other[j] -= factor * row[j];
      }
    }
  }
  return true;
}

// Panels of a stripe of finished rows of R, for the products that take them off the rows below.
// Those wait for the whole stripe: the matrix is read and written once for kStripeRows rows of R.
struct Stripe {
  Stripe(int64_t n, int64_t first_row, LargeBlocks* blocks)
      : begin(first_row),
        rows(std::min(kStripeRows, n - first_row)),
        solved(static_cast<size_t>((n - first_row + kLanes - 1) / kLanes * kLanes * rows), blocks),
        negative(solved.size(), blocks) {}

  // Where row `row` of the panel with column `column` is.
  int64_t at(int64_t row, int64_t column) const {
    return ((column - begin) / kLanes * rows + row - begin) * kLanes;
  }
  int64_t end() const { return begin + rows; }

  int64_t begin, rows;
  AlignedFloats solved, negative;  // [panel][rows][kLanes]; panels from `begin` on
};

// Rows [begin, begin + rows) of R right of the diagonal block: forward substitution, columns
// independent of each other. Panels may reach into the padding, which stays zero.
void solve_rows(
    SquareMatrix& a, int64_t begin, int64_t rows, Stripe& stripe, const Compute& compute) {
  const int64_t next = begin + rows;
  const int64_t panels = (a.n() - next + kLanes - 1) / kLanes;
  compute.pool.parallel_for(panels, 1, [&](int64_t first, int64_t last, int /*thread*/) {
    for (int64_t p = first; p < last; ++p) {
      const int64_t column = next + p * kLanes;
      float* copy = stripe.negative.data() + stripe.at(begin, column);
      float* same = stripe.solved.data() + stripe.at(begin, column);
      for (int64_t k = 0; k < rows; ++k) {
        float* row = a.row(begin + k) + column;
        float value[kLanes];
        std::copy_n(row, kLanes, value);
        for (int64_t m = 0; m < k; ++m) {
          const float factor = a.at(begin + m, begin + k);
          const float* other = copy + m * kLanes;
          for (int64_t lane = 0; lane < kLanes; ++lane) {
            value[lane] += factor * other[lane];
          }
        }
        const float pivot = a.at(begin + k, begin + k);
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          value[lane] /= pivot;
          copy[k * kLanes + lane] = -value[lane];
        }
        std::copy_n(value, kLanes, row);
        std::copy_n(value, kLanes, same + k * kLanes);
      }
    }
  });
}

// A -= R^T R for rows [from, to) of A, with rows [begin, end) of R: panels on and above the
// diagonal.
void take_off(SquareMatrix& a,
              int64_t from,
              int64_t to,
              int64_t begin,
              int64_t end,
              const Stripe& stripe,
              const Compute& compute) {
  add_upper_product({.from = from,
                     .to = to,
                     .depth = end - begin,
                     .a = stripe.solved.data() + stripe.at(begin, from),
                     .b = stripe.negative.data() + stripe.at(begin, from),
                     .panel_stride = stripe.rows * kLanes},
                    a,
                    compute);
}

// The upper factor R of A = R^T R over the upper triangle of `a`; false when A is not positive
// definite in FP32.
bool cholesky(SquareMatrix& a, const Compute& compute) {
  const int64_t n = a.n();
  for (int64_t top = 0; top < n; top += kStripeRows) {
    Stripe stripe(n, top, compute.blocks);
    for (int64_t begin = top; begin < stripe.end(); begin += kPanelRows) {
      const int64_t rows = std::min(kPanelRows, stripe.end() - begin);
      if (!factor_diagonal(a, begin, rows)) {
        return false;
      }
      if (begin + rows < n) {
        solve_rows(a, begin, rows, stripe, compute);
        take_off(a, begin + rows, stripe.end(), begin, begin + rows, stripe, compute);
      }
    }
    take_off(a, stripe.end(), n, top, stripe.end(), stripe, compute);
  }
  return true;
}

// V + V^T - 1 from the factor R of the reversed matrix, J H J = R^T R: T = J R^T J.
BlockMatrix feedback_of(const SquareMatrix& r, const Compute& compute) {
  const int64_t n = r.n();
  BlockMatrix result(n, compute.blocks);
  compute.pool.parallel_for(n / kPanelBlock, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t column = block * kPanelBlock;
      const float* rows[kPanelBlock];
      float diagonal[kPanelBlock];
      for (int64_t j = 0; j < kPanelBlock; ++j) {
        rows[j] = r.row(n - 1 - column - j);
        diagonal[j] = rows[j][n - 1 - column - j];
      }
      float* out = result.column_block(block);
      for (int64_t i = 0; i < column + kPanelBlock; ++i) {
        for (int64_t j = std::max<int64_t>(i - column, 0); j < kPanelBlock; ++j) {
          out[i * kPanelBlock + j] = rows[j][n - 1 - i] / diagonal[j];
        }
      }
      for (int64_t i = column + 1; i < n; ++i) {
        const float* row = r.row(n - 1 - i);
        const float own = row[n - 1 - i];
        for (int64_t j = 0; j < std::min(i - column, kPanelBlock); ++j) {
          out[i * kPanelBlock + j] = row[n - 1 - column - j] / own;
        }
      }
    }
  });
  return result;
}

tl::unexpected<Error> too_large() {
  return invalid("the squares of what it reads in calibration are too large for FP32");
}

}  // namespace

std::vector<int32_t> processing_order(const ScaledHessian& input) {
  const int64_t n = input.hessian.n();
  std::vector<float> diagonal;
  diagonal.reserve(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    diagonal.push_back(input.at(i, i));
  }
  const auto blocks = static_cast<size_t>(n / kPanelBlock);
  std::vector<double> mean(blocks, 0.0);
  for (int64_t i = 0; i < n; ++i) {
    mean[static_cast<size_t>(i / kPanelBlock)] +=
        static_cast<double>(diagonal[static_cast<size_t>(i)]);
  }
  std::vector<int32_t> block_order(blocks);
  std::iota(block_order.begin(), block_order.end(), 0);
  std::stable_sort(block_order.begin(), block_order.end(), [&](int32_t a, int32_t b) {
    return mean[static_cast<size_t>(a)] > mean[static_cast<size_t>(b)];
  });
  std::vector<int32_t> order;
  order.reserve(static_cast<size_t>(n));
  for (const int32_t block : block_order) {
    const auto begin = static_cast<std::ptrdiff_t>(order.size());
    for (int32_t i = 0; i < kPanelBlock; ++i) {
      order.push_back(block * static_cast<int32_t>(kPanelBlock) + i);
    }
    std::stable_sort(order.begin() + begin, order.end(), [&](int32_t a, int32_t b) {
      return diagonal[static_cast<size_t>(a)] > diagonal[static_cast<size_t>(b)];
    });
  }
  return order;
}

Result<Factored> factorize(const ScaledHessian& input, const Compute& compute) {
  const int64_t n = input.hessian.n();
  CHECK(n % kPanelBlock == 0, "not whole blocks: ", n);
  const auto mean = static_cast<float>(mean_diagonal(input));
  if (!std::isfinite(mean)) {  // nor could the columns be put in order
    return too_large();
  }
  Factored result;
  result.order = processing_order(input);
  // At least a normal number: what has become 0 does not grow.
  result.damping =
      std::max(kDamping * (mean > 0.0f ? mean : 1.0f), std::numeric_limits<float>::min());
  for (; std::isfinite(result.damping); result.damping *= kMoreDamping) {
    result.hessian = permuted(input, result.order, compute);
    for (int64_t i = 0; i < n; ++i) {
      float& diagonal = result.hessian.at(i, i);
      diagonal = (diagonal == 0.0f ? 1.0f : diagonal) + result.damping;
    }
    SquareMatrix reversed = reversed_upper(result.hessian, compute);
    if (cholesky(reversed, compute)) {
      result.feedback = feedback_of(reversed, compute);
      for (int64_t k = n - 1; k >= 0; --k) {
        result.cost.push_back(reversed.at(k, k) * reversed.at(k, k));
      }
      return result;
    }
  }
  return too_large();
}

BlockMatrix blocks_of(const ScaledHessian& input, const Compute& compute, BlockMatrix memory) {
  const int64_t n = input.hessian.n();
  BlockMatrix result = memory.n() == n ? std::move(memory) : BlockMatrix(n, compute.blocks);
  compute.pool.parallel_for(n, kPanelBlock, [&](int64_t begin, int64_t end, int /*thread*/) {
    std::vector<float> row(static_cast<size_t>(n));
    for (int64_t i = begin; i < end; ++i) {
      scaled_row(input, i, (i / kPanelBlock + 1) * kPanelBlock, row.data());
      for (int64_t block = 0; block <= i / kPanelBlock; ++block) {
        std::copy_n(row.data() + block * kPanelBlock,
                    kPanelBlock,
                    result.column_block(block) + i * kPanelBlock);
      }
    }
  });
  return result;
}

}  // namespace nibble::quantize
