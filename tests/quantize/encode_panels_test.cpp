#include "quantize/encode_panels.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "base/number_formats.h"

namespace nibble::quantize {
namespace {

struct Problem {
  int64_t n;
  int64_t k;
  std::vector<float> weights;
  SquareMatrix hessian;
};

// Weights of a usual size; inputs with correlated columns and a few loud ones.
Problem make_problem(int64_t n, int64_t k, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Problem problem{n, k, std::vector<float>(static_cast<size_t>(n * k)), SquareMatrix(k)};
  for (float& value : problem.weights) {
    value = 0.02f * normal(random);
  }
  std::vector<float> x(static_cast<size_t>(k));
  const int64_t tokens = 4 * k;
  for (int64_t t = 0; t < tokens; ++t) {
    float common[4];
    for (float& value : common) {
      value = normal(random);
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const float loud = i % 29 == 3 ? 8.0f : 1.0f;
      x[i] = loud * (normal(random) + common[i % 4] + 0.5f * common[(i / 4) % 4]);
    }
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        problem.hessian.at(i, j) +=
            x[static_cast<size_t>(i)] * x[static_cast<size_t>(j)] / static_cast<float>(tokens);
      }
    }
  }
  return problem;
}

float global_of(const Problem& problem) {
  float amax = 0;
  for (const float value : problem.weights) {
    amax = std::max(amax, std::fabs(value));
  }
  return quant::global_scale_from_amax(amax);
}

std::vector<float> diagonal_of(const SquareMatrix& h) {
  std::vector<float> diagonal;
  diagonal.reserve(static_cast<size_t>(h.n()));
  for (int64_t i = 0; i < h.n(); ++i) {
    diagonal.push_back(h.at(i, i));
  }
  return diagonal;
}

// e^T H e of every row, in double.
double true_objective(const Problem& problem, const quant::Nvfp4Matrix& q) {
  std::vector<float> decoded(problem.weights.size());
  quant::decode(
      q.codes.data(), q.block_scales.data(), q.global_scale, q.rows, q.cols, decoded.data());
  double total = 0;
  for (int64_t row = 0; row < problem.n; ++row) {
    for (int64_t i = 0; i < problem.k; ++i) {
      for (int64_t j = 0; j < problem.k; ++j) {
        const auto a = static_cast<size_t>(row * problem.k + i);
        const auto b = static_cast<size_t>(row * problem.k + j);
        total += static_cast<double>(problem.weights[a] - decoded[a]) *
                 static_cast<double>(problem.hessian.at(i, j)) *
                 static_cast<double>(problem.weights[b] - decoded[b]);
      }
    }
  }
  return total;
}

TEST(EncodePanels, EveryStepLowersTheObjective) {
  ThreadPool pool(2);
  const Compute compute{panel_kernels(), pool};
  const Problem problem = make_problem(70, 192);
  const float global = global_of(problem);
  const RowRange rows{problem.weights.data(), 0, problem.n};
  const Factored factored = *factorize({problem.hessian}, compute);

  auto max = quant::encode(problem.weights, problem.n, problem.k, global);
  auto sweep = quant::empty_matrix(problem.n, problem.k, global);
  encode_sweep(rows, diagonal_of(problem.hessian), kSweepWindow, compute, sweep);
  auto gptq = quant::empty_matrix(problem.n, problem.k, global);
  const Objective objective = encode_gptq(rows, factored, {}, compute, gptq);

  const double of_max = true_objective(problem, max);
  const double of_sweep = true_objective(problem, sweep);
  const double of_gptq = true_objective(problem, gptq);
  EXPECT_LT(of_sweep, 0.8 * of_max);
  EXPECT_LT(of_gptq, 0.5 * of_sweep);
  EXPECT_NEAR(objective.after, of_gptq, 1e-3 * of_gptq);
  EXPECT_LT(objective.after, 0.98 * objective.before);
  EXPECT_GT(objective.after, 0.5 * objective.before);
  EXPECT_GT(objective.weights, 100 * objective.after);

  const BlockMatrix hessian = blocks_of({problem.hessian}, compute);
  EXPECT_NEAR(measure(rows, sweep, hessian, compute), of_sweep, 1e-3 * of_sweep);
  EXPECT_NEAR(measure(rows, gptq, hessian, compute), of_gptq, 1e-3 * of_gptq);
  auto nothing = quant::empty_matrix(problem.n, problem.k, global);
  const double of_weights = true_objective(problem, nothing);
  EXPECT_NEAR(measure(rows, nothing, hessian, compute), of_weights, 1e-3 * of_weights);
  EXPECT_NEAR(objective.weights, of_weights, 1e-3 * of_weights);
}

TEST(EncodePanels, ThreadsAndNeighboursChangeNothing) {
  ThreadPool one(1);  // takes more panels together
  ThreadPool three(3);
  const Problem problem = make_problem(200, 320);
  const float global = global_of(problem);
  const Factored factored = *factorize({problem.hessian}, {panel_kernels(), one});
  auto a = quant::empty_matrix(problem.n, problem.k, global);
  auto b = a;
  const RowRange rows{problem.weights.data(), 0, problem.n};
  const Objective x = encode_gptq(rows, factored, {}, {panel_kernels(), one}, a);
  const Objective y = encode_gptq(rows, factored, {}, {panel_kernels(), three}, b);
  EXPECT_EQ(a.codes, b.codes);
  EXPECT_EQ(a.block_scales, b.block_scales);
  EXPECT_EQ(x.after, y.after);
  EXPECT_EQ(x.before, y.before);
  EXPECT_EQ(x.weights, y.weights);
  // The same rows in two calls: other panels, other lanes.
  auto c = quant::empty_matrix(problem.n, problem.k, global);
  encode_gptq({problem.weights.data(), 0, 7}, factored, {}, {panel_kernels(), three}, c);
  encode_gptq({problem.weights.data(), 7, 200}, factored, {}, {panel_kernels(), three}, c);
  EXPECT_EQ(a.codes, c.codes);
  EXPECT_EQ(a.block_scales, c.block_scales);
}

TEST(EncodePanels, EveryInstructionSetReachesTheSameObjective) {
  ThreadPool pool(2);
  const Problem problem = make_problem(40, 272);
  const RowRange rows{problem.weights.data(), 0, problem.n};
  const auto objective_of = [&](const PanelKernels& kernels, const SquareMatrix& hessian) {
    const Compute compute{kernels, pool};
    auto out = quant::empty_matrix(problem.n, problem.k, global_of(problem));
    return encode_gptq(rows, *factorize({hessian}, compute), {}, compute, out);
  };
  const Objective scalar = objective_of(kPanelScalar, problem.hessian);
  const Objective best = objective_of(panel_kernels(), problem.hessian);
  EXPECT_NEAR(scalar.before, best.before, 1e-2 * best.before);
  EXPECT_NEAR(scalar.after, best.after, 1e-2 * best.after);
  EXPECT_NEAR(scalar.weights, best.weights, 1e-4 * best.weights);
  SquareMatrix other = problem.hessian;
  for (int64_t i = 0; i < problem.k; i += 2) {
    other.at(i, i) *= 1.5f;
  }
  EXPECT_GT(objective_of(kPanelScalar, other).after, 1.05 * best.after);
}

// Three columns carry weights, the others are zero: every code and scale can be tried.
TEST(EncodePanels, DescentReachesTheBestOfAllCodesOnTinyBlocks) {
  ThreadPool pool(1);
  const Compute compute{panel_kernels(), pool};
  int reached = 0;
  constexpr int kTries = 12;
  for (unsigned seed = 0; seed < kTries; ++seed) {
    Problem problem = make_problem(1, 16, seed + 10);
    for (size_t i = 3; i < 16; ++i) {
      problem.weights[i] = 0.0f;
      for (int64_t j = 0; j < 16; ++j) {
        const auto column = static_cast<int64_t>(i);
        problem.hessian.at(column, j) = 0.0f;
        problem.hessian.at(j, column) = 0.0f;
      }
    }
    const float global = 0.0001f;
    const Factored factored = *factorize({problem.hessian}, compute);
    auto out = quant::empty_matrix(1, 16, global);
    GptqOptions options;
    options.window = {-126, 126};
    const Objective found =
        encode_gptq({problem.weights.data(), 0, 1}, factored, options, compute, out);

    double best = std::numeric_limits<double>::infinity();
    for (int scale_code = 1; scale_code <= 126; ++scale_code) {
      const double scale =
          static_cast<double>(e4m3_to_float(static_cast<uint8_t>(scale_code)) * global);
      for (int codes = 0; codes < 16 * 16 * 16; ++codes) {
        double e[3];
        for (int i = 0; i < 3; ++i) {
          const auto code = static_cast<uint8_t>((codes >> (4 * i)) & 15);
          e[i] = static_cast<double>(problem.weights[static_cast<size_t>(i)]) -
                 static_cast<double>(e2m1_to_float(code)) * scale;
        }
        double sum = 0;
        for (int i = 0; i < 3; ++i) {
          for (int j = 0; j < 3; ++j) {
            sum += e[i] * e[j] * static_cast<double>(problem.hessian.at(i, j));
          }
        }
        best = std::min(best, sum);
      }
    }
    EXPECT_GE(found.after, best * 0.99 - 1e-9);
    reached += found.after <= best * 2 + 1e-9 ? 1 : 0;
  }
  EXPECT_GE(reached, kTries / 2);
}

TEST(EncodePanels, ZeroRowsAndNegativeZerosStayZero) {
  ThreadPool pool(1);
  const Compute compute{panel_kernels(), pool};
  Problem problem = make_problem(3, 32);
  std::fill_n(problem.weights.begin(), 32, -0.0f);
  const Factored factored = *factorize({problem.hessian}, compute);
  auto out = quant::empty_matrix(3, 32, 0.00001f);
  encode_gptq({problem.weights.data(), 0, 3}, factored, {}, compute, out);
  EXPECT_EQ(out.block_scales[0], 1);
  EXPECT_EQ(out.block_scales[1], 1);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(out.codes[i], 0);
  }
  for (const uint8_t pair : out.codes) {  // code 8 is -0
    EXPECT_NE(pair & 15, 8);
    EXPECT_NE(pair >> 4, 8);
  }
}

}  // namespace
}  // namespace nibble::quantize
