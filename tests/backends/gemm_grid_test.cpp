// The integer W4A16 kernel: its grid rule in scalar code, and the bits that follow from it.
#include "backends/cpu/gemm_grid.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <gtest/gtest.h>

#include "base/cpu_info.h"
#include "base/number_formats.h"
#include "support/gemm_problem.h"

namespace nibble::test {
namespace {

const int kHost = static_cast<int>(detect_cpu_isa());

struct GridBlock {
  std::array<double, 16> values;  // multiples of 2^exponent
  int exponent = 0;
  bool is_nan = false;
};

GridBlock grid_of(const uint16_t* x) {
  GridBlock block;
  uint16_t largest = 0;
  for (int i = 0; i < 16; ++i) {
    largest = std::max<uint16_t>(largest, x[i] & 0x7FFF);
  }
  block.exponent = ((largest + 1) >> 7) - 127 - cpu::kGridBits;
  block.is_nan = block.exponent > cpu::kGridHighest;
  block.exponent = std::max(block.exponent, cpu::kGridLowest);
  for (size_t i = 0; i < 16; ++i) {
    block.values[i] =
        std::nearbyint(std::ldexp(static_cast<double>(bf16_to_float(x[i])), -block.exponent));
  }
  return block;
}

// One part, f32 output: acc = fma(exact sum, scale, acc) over the blocks, times the global scale.
std::vector<float> model(const GemmProblem& problem) {
  const int64_t k = problem.desc.k;
  std::vector<float> y;
  for (int64_t row = 0; row < problem.m; ++row) {
    for (int64_t n = 0; n < problem.desc.n; ++n) {
      float acc = 0.0f;
      for (int64_t b = 0; b < k / 16; ++b) {
        const GridBlock x = grid_of(problem.x.data() + row * k + b * 16);
        const float scale = e4m3_to_float(problem.scales[0][static_cast<size_t>(n * k / 16 + b)]);
        double sum = 0.0;
        for (int64_t i = 0; i < 16; ++i) {
          const uint8_t byte = problem.weights[0][static_cast<size_t>((n * k + b * 16 + i) / 2)];
          const auto code = static_cast<uint8_t>(i % 2 == 0 ? byte & 15 : byte >> 4);
          sum += 2.0 * e2m1_to_float(code) * x.values[static_cast<size_t>(i)];
        }
        // A common power of two keeps tiny and huge activations away from FP32's limits.
        const float step = x.is_nan ? std::nanf("") : std::ldexp(scale, x.exponent - 57);
        acc = std::fma(static_cast<float>(sum), step, acc);
      }
      y.push_back(acc * (problem.weight_scale[0] * 0x1p56f));
    }
  }
  return y;
}

class GemmGrid : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto found = select_gemm(desc(), GetParam());
    if (!found) {
      GTEST_SKIP() << found.error().text();
    }
    backend_ = *found;
  }
  static GemmDesc desc() {
    GemmDesc desc = make_gemm_desc(kW4A16, 50, 304, kHost);
    desc.out = DType::F32;
    return desc;
  }
  void expect_model(const GemmProblem& problem) {
    const std::vector<float> want = model(problem);
    const PackedGemm packed = pack_gemm(*backend_, problem, stream_.get());
    const auto check = [&](const std::vector<float>& got, int64_t first_row) {
      for (size_t i = 0; i < got.size(); ++i) {
        const float expected = want[static_cast<size_t>(first_row * problem.desc.n) + i];
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(got[i])) << i;
        } else {
          ASSERT_EQ(got[i], expected) << i;
        }
      }
    };
    check(run_gemm(*backend_, problem, packed, stream_.get(), 0, problem.m), 0);
    for (int64_t row = 0; row < problem.m; ++row) {
      check(run_gemm(*backend_, problem, packed, stream_.get(), row, row + 1), row);
    }
  }
  const GemmBackend* backend_ = nullptr;
  StreamOwner stream_{Device{}, 2};
};

TEST_P(GemmGrid, OneAndManyRowsGiveTheModelsBits) {
  const GemmProblem problem = make_gemm_problem(desc(), 9, 3);
  expect_model(problem);
  GemmProblem changed = problem;
  changed.x[17] ^= 0x80;  // one bit of the exponent
  EXPECT_NE(model(changed), model(problem));
}

TEST_P(GemmGrid, EveryExponentAndMantissaOfTheLargestValueKeepsTheModelsBits) {
  GemmProblem problem = make_gemm_problem(desc(), 16, 4);
  uint32_t word = 0;
  for (size_t i = 0; i < problem.x.size(); i += 16) {
    problem.x[i + word % 16] = static_cast<uint16_t>(word * 107);  // both signs, NaN and infinity
    ++word;
  }
  for (size_t i = 0; i < 128; ++i) {  // all-ones mantissas of either sign in the first blocks
    problem.x[i] = static_cast<uint16_t>(0x3FFF | (i % 2) << 15);
  }
  expect_model(problem);
}

TEST_P(GemmGrid, NeitherTinyNorHugeActivationsLeaveTheirRange) {
  for (int exponent : {-126, -60, -40, 60, 80, 81, 82, 120}) {
    GemmProblem problem = make_gemm_problem(desc(), 3, 5);
    for (uint16_t& value : problem.x) {
      value = static_cast<uint16_t>((value & 0x807E) | (exponent + 127) << 7);
    }
    expect_model(problem);
    const auto y = run_gemm(*backend_, problem, stream_.get());
    const bool beyond = exponent - cpu::kGridBits > cpu::kGridHighest;
    EXPECT_EQ(std::isnan(y[0]), beyond) << exponent;
  }
}

// Where every value of a block is within 2^7 of the largest power of two nothing is rounded, so the
// error is that of FP32 additions alone; one far smaller value shows the difference.
TEST_P(GemmGrid, ValuesWithinSevenBitsOfTheLargestAreExact) {
  GemmProblem problem = make_gemm_problem(desc(), 4, 6);
  for (size_t i = 0; i < problem.x.size(); ++i) {
    const auto exponent = static_cast<uint16_t>(i % 16 == 0 ? 134 : 127 + i % 7);
    problem.x[i] = static_cast<uint16_t>((problem.x[i] & 0x807E) | exponent << 7);
  }
  EXPECT_LT(relative_l2(problem.expected(), run_gemm(*backend_, problem, stream_.get())), 3e-7);
  const uint16_t small = float_to_bf16(0.00390625f * 1.3125f);
  bool differs = false;
  for (size_t i = 1; i < 16; ++i) {
    problem.x[i] = small;
  }
  const GridBlock block = grid_of(problem.x.data());
  for (size_t i = 1; i < 16; ++i) {
    differs = differs || std::ldexp(block.values[i], block.exponent) !=
                             static_cast<double>(bf16_to_float(small));
  }
  EXPECT_TRUE(differs);
}

INSTANTIATE_TEST_SUITE_P(Levels,
                         GemmGrid,
                         testing::Values("nvfp4_w4a16_avx2", "nvfp4_w4a16_avx512"),
                         [](const auto& level) { return std::string(level.param); });

}  // namespace
}  // namespace nibble::test
