#include "quantize/upper_product.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace nibble::quantize {
namespace {

// Whole numbers: every order of summation gives the same.
std::vector<float> whole_numbers(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(static_cast<int>(random() % 7) - 3);
  }
  return values;
}

// n columns, rows [from, to) of C, `depth` of a stride's rows.
void check(int64_t n, int64_t from, int64_t to, int64_t depth, int64_t stride_rows, int threads) {
  const int64_t panels = (n - from + kLanes - 1) / kLanes;
  const std::vector<float> a = whole_numbers(panels * stride_rows * kLanes, 1);
  const std::vector<float> b = whole_numbers(panels * stride_rows * kLanes, 2);
  const auto value = [&](const std::vector<float>& of, int64_t d, int64_t column) {
    const int64_t at = column - from;
    return of[static_cast<size_t>((at / kLanes * stride_rows + d) * kLanes + at % kLanes)];
  };
  SquareMatrix c(n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      c.at(i, j) = 0.5f;
    }
  }
  ThreadPool pool(threads);
  const Compute compute{panel_kernels(), pool};
  add_upper_product({.from = from,
                     .to = to,
                     .depth = depth,
                     .a = a.data(),
                     .b = b.data(),
                     .panel_stride = stride_rows * kLanes},
                    c,
                    compute);
  for (int64_t i = 0; i < n; ++i) {
    const bool row_is_asked = i >= from && i < to;
    const int64_t first = from + (i - from) / kLanes * kLanes;  // of the panel on the diagonal
    for (int64_t j = 0; j < n; ++j) {
      float expected = 0.5f;
      for (int64_t d = 0; row_is_asked && j >= first && d < depth; ++d) {
        expected += value(a, d, i) * value(b, d, j);
      }
      ASSERT_EQ(c.at(i, j), expected) << i << ", " << j;
    }
  }
}

TEST(UpperProduct, AddsOnAndRightOfTheDiagonalPanelsAndNowhereElse) {
  for (const int threads : {1, 3}) {
    check(16, 0, 16, 1, 1, threads);
    check(48, 0, 48, 5, 5, threads);        // the last panel reaches into the padding
    check(400, 0, 400, 130, 130, threads);  // several tiles, a depth above one piece
    check(400, 64, 400, 64, 100, threads);
    check(400, 64, 192, 64, 100, threads);  // rows of a stripe
  }
}

TEST(UpperProduct, WithoutRowsNothingChanges) { check(48, 48, 48, 4, 4, 1); }

}  // namespace
}  // namespace nibble::quantize
