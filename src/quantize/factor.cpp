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

double mean_diagonal(const SquareMatrix& matrix) {
  double sum = 0;
  for (int64_t i = 0; i < matrix.n(); ++i) {
    sum += static_cast<double>(matrix.at(i, i));
  }
  return sum / static_cast<double>(std::max<int64_t>(matrix.n(), 1));
}

SquareMatrix permuted(const SquareMatrix& matrix, const std::vector<int32_t>& order) {
  SquareMatrix result(matrix.n());
  for (int64_t i = 0; i < matrix.n(); ++i) {
    const float* from = matrix.row(order[static_cast<size_t>(i)]);
    float* to = result.row(i);
    for (int64_t j = 0; j < matrix.n(); ++j) {
      to[j] = from[order[static_cast<size_t>(j)]];
    }
  }
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
    std::vector<float> negative(static_cast<size_t>(panels * rows * kLanes), 0.0f);
    compute.pool.parallel_for(panels, 1, [&](int64_t first, int64_t last, int /*thread*/) {
      for (int64_t p = first; p < last; ++p) {
        const int64_t column = next + p * kLanes;
        const int64_t width = std::min(kLanes, n - column);
        float* copy = negative.data() + p * rows * kLanes;
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
          }
        }
      }
    });
    // What is left: A -= R^T R, upper triangle by panels.
    compute.pool.parallel_for(panels, 1, [&](int64_t first, int64_t last, int /*thread*/) {
      for (int64_t p = first; p < last; ++p) {
        const int64_t column = next + p * kLanes;
        const int64_t above =
            std::min(n, column + kLanes) - next;  // rows on and above the diagonal
        compute.kernels.accumulate(above,
                                   rows,
                                   a.row(begin) + next,
                                   a.stride(),
                                   negative.data() + p * rows * kLanes,
                                   kLanes,
                                   a.row(next) + column,
                                   a.stride());
      }
    });
  }
  return true;
}

// U with H^-1 = U^T U from the factor R of the reversed matrix J H J = R^T R: U = J R^-T J. Columns
// of R^-T are solved for a panel at a time.
SquareMatrix reversed_inverse(const SquareMatrix& r, const Compute& compute) {
  const int64_t n = r.n();
  SquareMatrix result(n);
  const int64_t panels = (n + kLanes - 1) / kLanes;
  compute.pool.parallel_for(panels, 1, [&](int64_t first, int64_t last, int /*thread*/) {
    std::vector<float> x;
    float negative[kPanelBlock * kLanes];
    for (int64_t p = first; p < last; ++p) {
      const int64_t column = p * kLanes;
      const int64_t width = std::min(kLanes, n - column);
      x.assign(static_cast<size_t>((n - column) * kLanes), 0.0f);  // row 0: row `column` of R^-T
      for (int64_t lane = 0; lane < width; ++lane) {
        x[static_cast<size_t>(lane * kLanes + lane)] = 1.0f;
      }
      for (int64_t begin = column; begin < n; begin += kPanelBlock) {
        for (int64_t k = 0; k < kPanelBlock; ++k) {
          float* row = x.data() + (begin - column + k) * kLanes;
          for (int64_t m = 0; m < k; ++m) {
            const float factor = r.at(begin + m, begin + k);
            for (int64_t lane = 0; lane < kLanes; ++lane) {
              row[lane] += factor * negative[m * kLanes + lane];
            }
          }
          const float pivot = r.at(begin + k, begin + k);
          for (int64_t lane = 0; lane < kLanes; ++lane) {
            row[lane] /= pivot;
            negative[k * kLanes + lane] = -row[lane];
          }
        }
        const int64_t next = begin + kPanelBlock;
        compute.kernels.accumulate(n - next,
                                   kPanelBlock,
                                   r.row(begin) + next,
                                   r.stride(),
                                   negative,
                                   kLanes,
                                   x.data() + (next - column) * kLanes,
                                   kLanes);
      }
      for (int64_t i = column; i < n; ++i) {
        const float* row = x.data() + (i - column) * kLanes;
        for (int64_t lane = 0; lane < width && column + lane <= i; ++lane) {
          result.at(n - 1 - i, n - 1 - column - lane) = row[lane];
        }
      }
    }
  });
  return result;
}

}  // namespace

std::vector<int32_t> processing_order(const SquareMatrix& hessian) {
  const int64_t n = hessian.n();
  const auto blocks = static_cast<size_t>(n / kPanelBlock);
  std::vector<double> mean(blocks, 0.0);
  for (int64_t i = 0; i < n; ++i) {
    mean[static_cast<size_t>(i / kPanelBlock)] += static_cast<double>(hessian.at(i, i));
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
      return hessian.at(a, a) > hessian.at(b, b);
    });
  }
  return order;
}

Factored factorize(const SquareMatrix& hessian, const Compute& compute) {
  CHECK(hessian.n() % kPanelBlock == 0, "not whole blocks: ", hessian.n());
  Factored result;
  result.order = processing_order(hessian);
  const int64_t n = hessian.n();
  const auto mean = static_cast<float>(mean_diagonal(hessian));
  result.damping = kDamping * (mean > 0.0f ? mean : 1.0f);
  for (;; result.damping *= kMoreDamping) {
    result.hessian = permuted(hessian, result.order);
    for (int64_t i = 0; i < n; ++i) {
      float& diagonal = result.hessian.at(i, i);
      diagonal = (diagonal == 0.0f ? 1.0f : diagonal) + result.damping;
    }
    SquareMatrix reversed(n);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = i; j < n; ++j) {
        reversed.at(i, j) = result.hessian.at(n - 1 - i, n - 1 - j);
      }
    }
    if (cholesky(reversed, compute)) {
      result.factor = reversed_inverse(reversed, compute);
      return result;
    }
  }
}

SquareMatrix scaled_hessian(const SquareMatrix& hessian, const std::vector<float>& scale) {
  SquareMatrix result(hessian.n());
  for (int64_t i = 0; i < hessian.n(); ++i) {
    for (int64_t j = 0; j < hessian.n(); ++j) {
      // Symmetric in its operands, so the result is symmetric bit for bit.
      result.at(i, j) =
          hessian.at(i, j) / (scale[static_cast<size_t>(i)] * scale[static_cast<size_t>(j)]);
    }
  }
  return result;
}

}  // namespace nibble::quantize
