// Which algorithm a product gets: the part that needs neither library nor GPU.
#include "backends/cuda/cublas_lt_product.h"

#include <gtest/gtest.h>

namespace nibble::cuda {
namespace {

TEST(CublasLtProduct, SortsRowCountsIntoClasses) {
  EXPECT_EQ(lt_row_class(1), 0u);
  EXPECT_EQ(lt_row_class(16), 0u);
  EXPECT_EQ(lt_row_class(17), 1u);
  EXPECT_EQ(lt_row_class(256), kLtReferenceClass);
  EXPECT_EQ(lt_row_class(4096), kLtRowClasses.size() - 1);
  EXPECT_EQ(lt_row_class(100000), kLtRowClasses.size() - 1);
  for (int64_t m = 1; m < 5000; ++m) {
    EXPECT_LE(lt_row_class(m), lt_row_class(m + 1));
  }
}

TEST(CublasLtProduct, TakesTheAlgorithmOfTheRowsClassWhereAMatrixHasSeveral) {
  const CublasLtApi no_library;
  LtProblem problem{.n = 384, .k = 320, .ldx = 320, .ldy = 384, .in = 14, .out = 14};
  EXPECT_FALSE(has_lt_algorithms(problem));
  LtAlgorithms algorithms;
  for (size_t i = 0; i < algorithms.size(); ++i) {
    algorithms[i].data[0] = 100 + i;
  }
  set_lt_algorithms(problem, algorithms);
  EXPECT_TRUE(has_lt_algorithms(problem));
  for (const int64_t m : {1, 40, 256, 700, 9000}) {
    problem.m = m;
    problem.ldy = 400;  // strides do not matter
    EXPECT_EQ(lt_algorithm(no_library, problem).data[0], 100 + lt_row_class(m));
  }
  const int bias = 0;
  LtProblem other = problem;
  other.bias = &bias;
  EXPECT_FALSE(has_lt_algorithms(other));
  other = problem;
  other.n = 385;
  EXPECT_FALSE(has_lt_algorithms(other));
}

TEST(CublasLtProductDeathTest, StopsWhereTheLibraryProposesNothing) {
  CublasLtApi refuses;
  refuses.desc_create = [](void**, int, int) { return 1; };
  EXPECT_DEATH((void)lt_algorithm(refuses, {.m = 1, .n = 64, .k = 64, .ldx = 64, .ldy = 64}),
               "no algorithm for 64 x 64");
}

}  // namespace
}  // namespace nibble::cuda
