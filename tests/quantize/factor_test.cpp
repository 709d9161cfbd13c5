#include "quantize/factor.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace nibble::quantize {
namespace {

// X^T X of random rows with correlated columns.
SquareMatrix random_hessian(int64_t n, int64_t rows, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  SquareMatrix h(n);
  std::vector<float> x(static_cast<size_t>(n));
  for (int64_t t = 0; t < rows; ++t) {
    float common = normal(random);
    for (int64_t i = 0; i < n; ++i) {
      x[static_cast<size_t>(i)] = (normal(random) + common) * (1.0f + static_cast<float>(i % 7));
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        h.at(i, j) +=
            x[static_cast<size_t>(i)] * x[static_cast<size_t>(j)] / static_cast<float>(rows);
      }
    }
  }
  return h;
}

// Largest |U^T U H - I|.
double inverse_error(const Factored& f) {
  const int64_t n = f.hessian.n();
  double worst = 0;
  for (int64_t i = 0; i < n; ++i) {
    std::vector<double> row(static_cast<size_t>(n), 0.0);  // of U^T U
    for (int64_t k = 0; k <= i; ++k) {
      for (int64_t j = 0; j < n; ++j) {
        row[static_cast<size_t>(j)] +=
            static_cast<double>(f.factor.at(k, i)) * static_cast<double>(f.factor.at(k, j));
      }
    }
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < n; ++k) {
        sum += row[static_cast<size_t>(k)] * static_cast<double>(f.hessian.at(k, j));
      }
      worst = std::max(worst, std::fabs(sum - (i == j ? 1.0 : 0.0)));
    }
  }
  return worst;
}

TEST(Factor, TheFactorsProductInvertsTheDampedHessian) {
  ThreadPool pool(2);
  for (const int64_t n : {int64_t{16}, int64_t{48}, int64_t{208}}) {
    const Factored f = factorize(random_hessian(n, 3 * n), {panel_kernels(), pool});
    EXPECT_LT(inverse_error(f), 2e-3) << n;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < i; ++j) {
        ASSERT_EQ(f.factor.at(i, j), 0.0f);
      }
    }
  }
}

TEST(Factor, WholeBlocksComeByFallingEnergy) {
  SquareMatrix h(48);
  for (int64_t i = 0; i < 48; ++i) {
    h.at(i, i) = static_cast<float>(i / 16 == 1 ? 100 + i : i);
  }
  const std::vector<int32_t> order = processing_order(h);
  EXPECT_EQ(order[0], 31);
  EXPECT_EQ(order[15], 16);
  EXPECT_EQ(order[16], 47);
  EXPECT_EQ(order[32], 15);
  EXPECT_EQ(order[47], 0);
}

TEST(Factor, DeadColumnsAndTooFewTokensAreNoTrouble) {
  ThreadPool pool(1);
  SquareMatrix h = random_hessian(64, 3);
  for (int64_t i = 0; i < 64; ++i) {
    h.at(5, i) = 0.0f;
    h.at(i, 5) = 0.0f;
  }
  const Factored f = factorize(h, {panel_kernels(), pool});
  EXPECT_LT(inverse_error(f), 0.05);
  EXPECT_GT(f.damping, 0.0f);
  const Factored nothing = factorize(SquareMatrix(32), {panel_kernels(), pool});
  EXPECT_LT(inverse_error(nothing), 1e-3);
}

TEST(Factor, ThreadsChangeNothing) {
  ThreadPool one(1);
  ThreadPool three(3);
  const SquareMatrix h = random_hessian(208, 300);
  const Factored a = factorize(h, {panel_kernels(), one});
  const Factored b = factorize(h, {panel_kernels(), three});
  for (int64_t i = 0; i < 208; ++i) {
    for (int64_t j = 0; j < 208; ++j) {
      ASSERT_EQ(a.factor.at(i, j), b.factor.at(i, j));
    }
  }
}

}  // namespace
}  // namespace nibble::quantize
