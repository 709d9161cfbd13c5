#include <utility>

#include <gtest/gtest.h>

#include "base/cpu_info.h"
#include "support/gemm_problem.h"

namespace nibble::test {
namespace {

constexpr int kScalar = static_cast<int>(CpuIsa::Scalar);

class CpuReference : public testing::TestWithParam<QuantMode> {
 protected:
  StreamOwner stream_{Device{}, 2};
  const GemmBackend& backend_ = **select_gemm(make_gemm_desc(kBf16, 8, 16, kScalar), "reference");
};

TEST_P(CpuReference, IsWithinFp32RoundingOfTheExactProduct) {
  GemmDesc desc = make_gemm_desc(GetParam(), 37, 208, kScalar, {20, 10, 7});
  desc.out = DType::F32;
  const GemmProblem problem = make_gemm_problem(desc, 5, 1);
  EXPECT_LT(relative_l2(problem.expected(), run_gemm(backend_, problem, stream_.get())), 1e-5);
}

TEST_P(CpuReference, AppliesThePreQuantScaleAndTheStaticInputScaleOfEveryPart) {
  GemmDesc desc = make_gemm_desc(GetParam(), 30, 64, kScalar, {20, 10});
  desc.out = DType::F32;
  desc.pre_quant_scale = true;
  desc.static_input_scale = GetParam().act == QuantMode::Act::Nvfp4;
  GemmProblem problem = make_gemm_problem(desc, 3, 2);
  const auto want = problem.expected();
  EXPECT_LT(relative_l2(want, run_gemm(backend_, problem, stream_.get())), 1e-5);
  problem.pre_quant_scale[1][7] *= 8.0f;
  EXPECT_GT(relative_l2(want, run_gemm(backend_, problem, stream_.get())), 4e-3);
}

INSTANTIATE_TEST_SUITE_P(Modes,
                         CpuReference,
                         testing::Values(kBf16, kW4A16, kW4A4, kFp8),
                         [](const auto& mode) { return to_string(mode.param); });

}  // namespace
}  // namespace nibble::test
