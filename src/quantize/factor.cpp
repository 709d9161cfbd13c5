#include "quantize/factor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace nibble::quantize {

namespace {

constexpr float kDamping = 0.01f;  // of the mean diagonal, as GPTQ (Frantar et al. 2022)
constexpr float kMoreDamping = 4.0f;
constexpr int64_t kPanelRows = 64;  // of a step of the factorization

double mean_diagonal(const ScaledHessian& input) {
  const int64_t n = input.hessian.n();
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += static_cast<double>(input.at(i, i));
  }
  return sum / static_cast<double>(std::max<int64_t>(n, 1));
}

BlockMatrix permuted(const ScaledHessian& input,
                     const std::vector<int32_t>& order,
                     const Compute& compute) {
  const int64_t n = input.hessian.n();
  BlockMatrix result(n);
  compute.pool.parallel_for(n / kPanelBlock, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    for (int64_t j = begin * kPanelBlock; j < end * kPanelBlock; ++j) {
      const int64_t column = order[static_cast<size_t>(j)];
      for (int64_t i = 0; i < n; ++i) {
        result.at(i, j) = input.at(column, order[static_cast<size_t>(i)]);
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

// The upper factor R of A = R^T R over the upper triangle of `a`; false when A is not positive
// definite in FP32.
bool cholesky(SquareMatrix& a, const Compute& compute) {
  const int64_t n = a.n();
  for (int64_t begin = 0; begin < n; begin += kPanelRows) {
    const int64_t rows = std::min(kPanelRows, n - begin);
    const int64_t next = begin + rows;
    if (!factor_diagonal(a, begin, rows)) {
      return false;
    }
    if (next == n) {
      break;
    }
    // The rest of these rows: forward substitution, columns independent of each other. Panels may
    // reach into the padding, which stays zero.
    const int64_t panels = (n - next + kLanes - 1) / kLanes;
    AlignedFloats solved(static_cast<size_t>(panels * rows * kLanes), 0.0f);
    AlignedFloats negative(solved.size(), 0.0f);
    compute.pool.parallel_for(panels, 1, [&](int64_t first, int64_t last, int /*thread*/) {
      for (int64_t p = first; p < last; ++p) {
        const int64_t column = next + p * kLanes;
        const int64_t width = std::min(kLanes, n - column);
        float* copy = negative.data() + p * rows * kLanes;
        float* same = solved.data() + p * rows * kLanes;
        for (int64_t k = 0; k < rows; ++k) {
          float* row = a.row(begin + k) + column;
          for (int64_t m = 0; m < k; ++m) {
            const float factor = a.at(begin + m, begin + k);
            for (int64_t lane = 0; lane < width; ++lane) {
              row[lane] += factor * copy[m * kLanes + lane];
            }
          }
          const float pivot = a.at(begin + k, begin + k);
          for (int64_t lane = 0; lane < width; ++lane) {
            row[lane] /= pivot;
            copy[k * kLanes + lane] = -row[lane];
            same[k * kLanes + lane] = row[lane];
          }
        }
      }
    });
    // What is left: A -= R^T R, pairs of panels on and above the diagonal.
    compute.pool.parallel_for(panels, 1, [&](int64_t first, int64_t last, int /*thread*/) {
      for (int64_t p = first; p < last; ++p) {
        const int64_t column = next + p * kLanes;
        for (int64_t q = 0; q <= p; ++q) {
          compute.kernels.accumulate(std::min(kLanes, n - next - q * kLanes),
                                     rows,
                                     solved.data() + q * rows * kLanes,
                                     kLanes,
                                     negative.data() + p * rows * kLanes,
                                     kLanes,
                                     a.row(next + q * kLanes) + column,
                                     a.stride());
        }
      }
    });
  }
  return true;
}

// V + V^T - 1 from the factor R of the reversed matrix, J H J = R^T R: T = J R^T J.
BlockMatrix feedback_of(const SquareMatrix& r, const Compute& compute) {
  const int64_t n = r.n();
  BlockMatrix result(n);
  compute.pool.parallel_for(n / kPanelBlock, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    for (int64_t j = begin * kPanelBlock; j < end * kPanelBlock; ++j) {
      const float* row = r.row(n - 1 - j);
      for (int64_t i = 0; i <= j; ++i) {
        result.at(i, j) = row[n - 1 - i] / row[n - 1 - j];
      }
      for (int64_t i = j + 1; i < n; ++i) {
        result.at(i, j) = r.at(n - 1 - i, n - 1 - j) / r.at(n - 1 - i, n - 1 - i);
      }
    }
  });
  return result;
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

Factored factorize(const ScaledHessian& input, const Compute& compute) {
  const int64_t n = input.hessian.n();
  CHECK(n % kPanelBlock == 0, "not whole blocks: ", n);
  Factored result;
  result.order = processing_order(input);
  const auto mean = static_cast<float>(mean_diagonal(input));
  result.damping = kDamping * (mean > 0.0f ? mean : 1.0f);
  for (;; result.damping *= kMoreDamping) {
    result.hessian = permuted(input, result.order, compute);
    for (int64_t i = 0; i < n; ++i) {
      float& diagonal = result.hessian.at(i, i);
      diagonal = (diagonal == 0.0f ? 1.0f : diagonal) + result.damping;
    }
    SquareMatrix reversed(n);
    const BlockMatrix& hessian = result.hessian;
    compute.pool.parallel_for(n, kPanelBlock, [&](int64_t begin, int64_t end, int /*thread*/) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = i; j < n; ++j) {
          reversed.at(i, j) = hessian.at(n - 1 - j, n - 1 - i);
        }
      }
    });
    if (cholesky(reversed, compute)) {
      result.feedback = feedback_of(reversed, compute);
      for (int64_t k = n - 1; k >= 0; --k) {
        result.cost.push_back(reversed.at(k, k) * reversed.at(k, k));
      }
      return result;
    }
  }
}

BlockMatrix blocks_of(const ScaledHessian& input, const Compute& compute) {
  std::vector<int32_t> order(static_cast<size_t>(input.hessian.n()));
  std::iota(order.begin(), order.end(), 0);
  return permuted(input, order, compute);
}

}  // namespace nibble::quantize
