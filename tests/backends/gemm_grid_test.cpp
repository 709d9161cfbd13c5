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
  std::array<double, 16> values{};  // multiples of 2^exponent
  int exponent = 0;
  bool is_nan = false;
  bool has_rest = false;
  std::array<uint16_t, 16> rest{};  // bf16
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
  double small = 0.0;
  double lost = 0.0;
  for (size_t i = 0; i < 16; ++i) {
    const double value = std::ldexp(static_cast<double>(bf16_to_float(x[i])), -block.exponent);
    block.values[i] = std::nearbyint(value);
    const double error = value - block.values[i];
    block.rest[i] = float_to_bf16(static_cast<float>(std::ldexp(error, block.exponent)));
    lost += error * error;
    small += std::fabs(value) < std::ldexp(1.0, cpu::kSmallBits) ? value * value : 0.0;
  }
  block.has_rest = !block.is_nan && block.exponent > cpu::kGridLowest &&
                   lost > static_cast<double>(cpu::kRestThreshold) * small &&
                   (lost > static_cast<double>(cpu::kRestLeast) ||
                    lost > static_cast<double>(cpu::kRestShare) * small);
  return block;
}

// One part, f32 output: acc = fma(exact sum, scale, acc) over the blocks and the rests of every 16
// blocks after them, times the global scale.
std::vector<float> model(const GemmProblem& problem) {
  const int64_t k = problem.desc.k;
  std::vector<float> y;
  for (int64_t row = 0; row < problem.m; ++row) {
    std::vector<GridBlock> blocks;
    blocks.reserve(static_cast<size_t>(k / 16));
    for (int64_t b = 0; b < k / 16; ++b) {
      blocks.push_back(grid_of(problem.x.data() + row * k + b * 16));
    }
    for (int64_t n = 0; n < problem.desc.n; ++n) {
      float acc = 0.0f;
      const auto add = [&](int64_t b, const GridBlock& x) {
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
      };
      for (int64_t first = 0; first < k / 16; first += cpu::kRestTile) {
        const int64_t end = std::min<int64_t>(first + cpu::kRestTile, k / 16);
        for (int64_t b = first; b < end; ++b) {
          add(b, blocks[static_cast<size_t>(b)]);
        }
        for (int64_t b = first; b < end; ++b) {
          if (blocks[static_cast<size_t>(b)].has_rest) {
            add(b, grid_of(blocks[static_cast<size_t>(b)].rest.data()));
          }
        }
      }
      y.push_back(acc * (problem.weight_scale[0] * 0x1p56f));
    }
  }
  return y;
}

int64_t num_rests(const GemmProblem& problem) {
  int64_t count = 0;
  for (size_t i = 0; i < problem.x.size(); i += 16) {
    count += grid_of(problem.x.data() + i).has_rest ? 1 : 0;
  }
  return count;
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

// Where values of a block are far larger than the others, the others keep their bits too: shown by
// outputs whose weights for the large values are zero, which are made of the others alone.
TEST_P(GemmGrid, SmallValuesBesideOutliersAreKeptWhereTheOutliersWeighNothing) {
  for (const float outlier : {20.0f, 100.0f, 1000.0f, 1e4f, 1e6f, 1e9f}) {
    for (const int per_block : {1, 2}) {
      GemmProblem problem = make_gemm_problem(desc(), 9, 8);
      const int64_t k = problem.desc.k;
      std::vector<bool> is_outlier(static_cast<size_t>(k));
      for (size_t i = 0; i < is_outlier.size(); i += 48) {
        for (size_t j = 0; j < static_cast<size_t>(per_block); ++j) {
          is_outlier[i + 5 + 3 * j] = true;
        }
      }
      for (size_t i = 0; i < problem.x.size(); ++i) {
        if (is_outlier[i % static_cast<size_t>(k)]) {
          const float sign = (problem.x[i] & 0x8000) != 0 ? -1.0f : 1.0f;
          problem.x[i] = float_to_bf16(sign * outlier * (1.0f - 0.3f * static_cast<float>(i % 3)));
        }
      }
      for (int64_t n = 0; n < problem.desc.n; n += 2) {  // every other output
        for (int64_t i = 0; i < k; ++i) {
          if (is_outlier[static_cast<size_t>(i)]) {
            uint8_t& codes = problem.weights[0][static_cast<size_t>((n * k + i) / 2)];
            codes = static_cast<uint8_t>(codes & (i % 2 == 0 ? 0xF0 : 0x0F));
          }
        }
      }
      expect_model(problem);
      EXPECT_EQ(num_rests(problem) > 0, outlier >= 100.0f) << outlier;
      const std::vector<double> want = problem.expected();
      const std::vector<float> got = run_gemm(*backend_, problem, stream_.get());
      for (const int64_t parity : {0, 1}) {
        std::vector<double> want_half;
        std::vector<float> got_half;
        for (int64_t i = parity; i < problem.desc.n * problem.m; i += 2) {  // n is even
          want_half.push_back(want[static_cast<size_t>(i)]);
          got_half.push_back(got[static_cast<size_t>(i)]);
        }
        EXPECT_LT(relative_l2(want_half, got_half), 2e-4)
            << outlier << ' ' << per_block << ' ' << parity;
      }
    }
  }
}

// Little is lost in steps, but it is a good part of what is there.
TEST_P(GemmGrid, ValuesAroundOneStepBesideAnOutlierAreKept) {
  GemmProblem problem = make_gemm_problem(desc(), 9, 10);
  const int64_t k = problem.desc.k;
  for (size_t i = 0; i < problem.x.size(); ++i) {
    const float size = i % 16 == 5 ? 0x1p14f : i % 16 == 7 ? 0.875f : 0.0625f;
    problem.x[i] = float_to_bf16((problem.x[i] & 0x8000) != 0 ? -size : size);
  }
  for (int64_t i = 5; i < k * problem.desc.n; i += 16) {
    problem.weights[0][static_cast<size_t>(i / 2)] &= 0x0F;
  }
  expect_model(problem);
  EXPECT_LT(relative_l2(problem.expected(), run_gemm(*backend_, problem, stream_.get())), 2e-4);
}

TEST_P(GemmGrid, NormallyDistributedValuesSeldomNeedRests) {
  GemmDesc wide = desc();
  wide.k = 4096;
  GemmProblem problem = make_gemm_problem(wide, 64, 9);
  const auto blocks = static_cast<int64_t>(problem.x.size() / 16);
  EXPECT_LT(num_rests(problem), blocks / 1000);
  for (size_t i = 0; i < problem.x.size(); i += 16) {
    problem.x[i] = float_to_bf16(1e4f);
  }
  EXPECT_GT(num_rests(problem), blocks * 99 / 100);
}

INSTANTIATE_TEST_SUITE_P(Levels,
                         GemmGrid,
                         testing::Values("nvfp4_w4a16_avx2", "nvfp4_w4a16_avx512"),
                         [](const auto& level) { return std::string(level.param); });

}  // namespace
}  // namespace nibble::test
