#include "quantize/factor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
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

// Largest |T T^T - H|, relative to the diagonal.
double factor_error(const Factored& f) {
  const int64_t n = f.hessian.n();
  std::vector<std::vector<double>> t;  // rows
  for (int64_t i = 0; i < n; ++i) {
    t.emplace_back();
    for (int64_t k = 0; k < n; ++k) {
      t.back().push_back(i > k
                             ? 0.0
                             : static_cast<double>(f.feedback.at(i, k)) *
                                   std::sqrt(static_cast<double>(f.cost[static_cast<size_t>(k)])));
    }
  }
  double worst = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const std::vector<double>& a = t[static_cast<size_t>(i)];
      const double sum =
          std::inner_product(a.begin(), a.end(), t[static_cast<size_t>(j)].begin(), 0.0);
      const auto size = static_cast<double>(f.hessian.at(i, i) * f.hessian.at(j, j));
      worst = std::max(worst,
                       std::fabs(sum - static_cast<double>(f.hessian.at(i, j))) / std::sqrt(size));
    }
  }
  return worst;
}

TEST(Factor, TheFactorTimesItselfIsTheDampedHessian) {
  ThreadPool pool(2);
  for (const int64_t n : {int64_t{16}, int64_t{48}, int64_t{208}, int64_t{528}}) {
    const Factored f = *factorize({random_hessian(n, 3 * n)}, {panel_kernels(), pool});
    EXPECT_LT(factor_error(f), 1e-5) << n;
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(f.feedback.at(i, i), 1.0f);
      for (int64_t j = 0; j < i; ++j) {
        ASSERT_EQ(f.feedback.at(i, j), f.feedback.at(j, i));
        ASSERT_EQ(f.hessian.at(i, j), f.hessian.at(j, i));
      }
    }
    Factored wrong = f;
    wrong.cost[3] *= 1.01f;
    EXPECT_GT(factor_error(wrong), 1e-3);
  }
}

TEST(Factor, AScaleDividesRowsAndColumns) {
  ThreadPool pool(1);
  const Compute compute{panel_kernels(), pool};
  const SquareMatrix h = random_hessian(32, 90);
  std::vector<float> scale(32, 1.0f);
  scale[4] = 2.0f;
  scale[9] = 0.5f;
  const BlockMatrix plain = blocks_of({h}, compute);
  const BlockMatrix scaled = blocks_of({h, &scale}, compute);
  EXPECT_EQ(plain.at(4, 7), h.at(4, 7));
  EXPECT_EQ(scaled.at(4, 7), h.at(4, 7) / 2.0f);
  EXPECT_EQ(scaled.at(4, 9), h.at(4, 9));
  EXPECT_EQ(plain.at(20, 9), h.at(20, 9));
  EXPECT_EQ(scaled.at(20, 9), h.at(20, 9) / 0.5f);
  EXPECT_EQ(scaled.at(9, 9), h.at(9, 9) * 4.0f);
}

TEST(Factor, WholeBlocksComeByFallingEnergy) {
  SquareMatrix h(48);
  for (int64_t i = 0; i < 48; ++i) {
    h.at(i, i) = static_cast<float>(i / 16 == 1 ? 100 + i : i);
  }
  const std::vector<int32_t> order = processing_order({h});
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
  const Factored f = *factorize({h}, {panel_kernels(), pool});
  EXPECT_LT(factor_error(f), 1e-5);
  EXPECT_GT(f.damping, 0.0f);
  const Factored nothing = *factorize({SquareMatrix(32)}, {panel_kernels(), pool});
  EXPECT_LT(factor_error(nothing), 1e-5);
}

TEST(Factor, TheSmallestInputsAreDampedToo) {
  ThreadPool pool(1);
  SquareMatrix h(32);
  for (int64_t i = 0; i < 32; ++i) {
    for (int64_t j = 0; j < 32; ++j) {
      h.at(i, j) = 1e-44f;  // of rank one, and a hundredth of it is 0
    }
  }
  const auto factored = factorize({h}, {panel_kernels(), pool});
  ASSERT_TRUE(factored.has_value());
  EXPECT_GE(factored->damping, std::numeric_limits<float>::min());
}

TEST(Factor, WhatFp32CannotHoldIsRefusedInWords) {
  ThreadPool pool(1);
  const Compute compute{panel_kernels(), pool};
  SquareMatrix h(32);
  for (int64_t i = 0; i < 32; ++i) {
    h.at(i, i) = 1e30f;
  }
  EXPECT_TRUE(factorize({h}, compute).has_value());
  std::vector<float> scale(32, 1.0f);
  scale[3] = 1e-6f;  // the square of its column, divided by the scale's, is infinite
  const auto divided = factorize({h, &scale}, compute);
  ASSERT_FALSE(divided.has_value());
  EXPECT_NE(divided.error().text().find("too large for FP32"), std::string::npos);
  for (int64_t i = 0; i < 32; ++i) {
    h.at(i, i) = std::numeric_limits<float>::max();  // finite, but not with the damping
  }
  EXPECT_FALSE(factorize({h}, compute).has_value());
  h = SquareMatrix(32);
  h.at(4, 4) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(factorize({h}, compute).has_value());
}

TEST(Factor, ThreadsChangeNothing) {
  ThreadPool one(1);
  ThreadPool three(3);
  const SquareMatrix h = random_hessian(304, 400);
  const Factored a = *factorize({h}, {panel_kernels(), one});
  const Factored b = *factorize({h}, {panel_kernels(), three});
  for (int64_t i = 0; i < 304; ++i) {
    for (int64_t j = 0; j < 304; ++j) {
      ASSERT_EQ(a.feedback.at(i, j), b.feedback.at(i, j));
    }
  }
}

}  // namespace
}  // namespace nibble::quantize
