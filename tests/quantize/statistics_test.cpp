#include "quantize/statistics.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "base/number_formats.h"

namespace nibble::quantize {
namespace {

struct Rows {
  std::vector<uint16_t> values;
  std::vector<const uint16_t*> pointers;
};

Rows random_rows(int64_t count, int64_t width) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  Rows rows;
  for (int64_t i = 0; i < count * width; ++i) {
    rows.values.push_back(float_to_bf16(normal(random) * static_cast<float>(1 + i % width)));
  }
  for (int64_t t = 0; t < count; ++t) {
    rows.pointers.push_back(rows.values.data() + t * width);
  }
  return rows;
}

TEST(Statistics, AreMeansOverTheTokensOfAllSteps) {
  constexpr int64_t kWidth = 48;
  const Rows rows = random_rows(301, kWidth);
  ThreadPool pool(2);
  const Compute compute{panel_kernels(), pool};
  StatisticsCollector collector(kWidth, true);
  collector.add(std::span(rows.pointers).first(200), compute);
  collector.add(std::span(rows.pointers).subspan(200), compute);
  const InputStatistics s = collector.finish(compute);
  EXPECT_EQ(s.tokens, 301);
  for (size_t i = 0; i < kWidth; ++i) {
    double magnitude = 0;
    float amax = 0;
    for (const uint16_t* row : rows.pointers) {
      magnitude += std::fabs(static_cast<double>(bf16_to_float(row[i]))) / 301.0;
      amax = std::max(amax, std::fabs(bf16_to_float(row[i])));
    }
    EXPECT_NEAR(s.mean_magnitude[i], magnitude, 1e-5 * magnitude);
    EXPECT_EQ(s.amax[i], amax);
    for (size_t j = 0; j < kWidth; ++j) {
      double product = 0;
      for (const uint16_t* row : rows.pointers) {
        product += static_cast<double>(bf16_to_float(row[i])) *
                   static_cast<double>(bf16_to_float(row[j])) / 301.0;
      }
      const float found = s.hessian.at(static_cast<int64_t>(i), static_cast<int64_t>(j));
      EXPECT_NEAR(found, product, 1e-4 * static_cast<double>((i + 1) * (j + 1)));
      EXPECT_EQ(found, s.hessian.at(static_cast<int64_t>(j), static_cast<int64_t>(i)));
    }
    EXPECT_NEAR(s.mean_square[i],
                s.hessian.at(static_cast<int64_t>(i), static_cast<int64_t>(i)),
                1e-4 * static_cast<double>(s.mean_square[i]));
  }
}

TEST(Statistics, ThreadsChangeNothing) {
  constexpr int64_t kWidth = 112;
  const Rows rows = random_rows(150, kWidth);
  ThreadPool one(1);
  ThreadPool three(3);
  StatisticsCollector a(kWidth, true);
  StatisticsCollector b(kWidth, true);
  a.add(rows.pointers, {panel_kernels(), one});
  b.add(rows.pointers, {panel_kernels(), three});
  const InputStatistics x = a.finish({panel_kernels(), one});
  const InputStatistics y = b.finish({panel_kernels(), three});
  EXPECT_EQ(x.mean_magnitude, y.mean_magnitude);
  for (int64_t i = 0; i < kWidth; ++i) {
    for (int64_t j = 0; j < kWidth; ++j) {
      ASSERT_EQ(x.hessian.at(i, j), y.hessian.at(i, j));
    }
  }
}

TEST(Statistics, WithoutHessianThereAreOnlySums) {
  const Rows rows = random_rows(5, 16);
  ThreadPool pool(1);
  StatisticsCollector collector(16, false);
  collector.add(rows.pointers, {panel_kernels(), pool});
  const InputStatistics s = collector.finish({panel_kernels(), pool});
  EXPECT_EQ(s.tokens, 5);
  EXPECT_TRUE(s.hessian.empty());
  EXPECT_GT(s.mean_square[0], 0.0f);
}

}  // namespace
}  // namespace nibble::quantize
