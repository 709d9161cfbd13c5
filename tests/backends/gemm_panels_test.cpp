// The SIMD GEMM kernels against the scalar oracle, bit for bit where they promise its order.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "base/cpu_info.h"
#include "support/gemm_problem.h"

namespace nibble::test {
namespace {

const int kHost = static_cast<int>(detect_cpu_isa());

// Names of backends that keep the oracle's order of summation.
std::vector<std::string> same_order() {
  return {"nvfp4_w4a4_avx2", "nvfp4_w4a4_vnni", "gemm_bf16_avx2", "gemm_bf16_avx512"};
}

TEST(GemmPanels, Fp32KernelsGiveTheOraclesBits) {
  StreamOwner stream(Device{}, 2);
  int compared = 0;
  for (QuantMode mode : {kW4A16, kW4A4, kBf16, kFp8}) {
    GemmDesc desc = make_gemm_desc(mode, 150, 1424, kHost, {33, 64, 53});
    desc.out = DType::F32;
    const GemmProblem problem = make_gemm_problem(desc, 23, 9);
    const auto oracle = run_gemm(**select_gemm(desc, "reference"), problem, stream.get());
    for (const std::string& name : same_order()) {
      const auto backend = select_gemm(desc, name);
      if (!backend) {
        continue;
      }
      ++compared;
      EXPECT_EQ(run_gemm(**backend, problem, stream.get()), oracle) << name;
      GemmProblem changed = problem;
      changed.x[5] ^= 0x8000;
      EXPECT_NE(run_gemm(**backend, changed, stream.get()), oracle) << name;
    }
  }
  if (compared == 0) {
    GTEST_SKIP() << "this cpu has no AVX2";
  }
}

// Row r holds code byte r, block b scale code b: every pair of them, on every level.
TEST(GemmPanels, EveryCodeTimesEveryScaleIsRight) {
  StreamOwner stream(Device{}, 2);
  int compared = 0;
  for (QuantMode mode : {kW4A16, kW4A4}) {
    GemmDesc desc = make_gemm_desc(mode, 256, 127 * 16, kHost);
    desc.out = DType::F32;
    GemmProblem problem = make_gemm_problem(desc, 2, 12);
    for (size_t i = 0; i < problem.weights[0].size(); ++i) {
      problem.weights[0][i] = static_cast<uint8_t>(i / (127 * 8));
    }
    for (size_t i = 0; i < problem.scales[0].size(); ++i) {
      problem.scales[0][i] = static_cast<uint8_t>(i % 127);
    }
    GemmProblem changed = problem;
    changed.weights[0][100 * 127 * 8 + 126 * 8] ^= 0x01;  // a code under the largest scale
    const std::vector<double> exact = problem.expected();
    for (const GemmBackend* backend : gemm_backends()) {
      if (!backend->supports(desc).ok) {
        continue;
      }
      ++compared;
      EXPECT_LE(relative_l2(exact, run_gemm(*backend, problem, stream.get())), 3e-5)
          << backend->name;
      EXPECT_GT(relative_l2(exact, run_gemm(*backend, changed, stream.get())), 3e-5)
          << backend->name;
    }
  }
  EXPECT_GE(compared, 2);
}

// W4A4 on AVX2 keeps block scales as int16 in tiles of 32 blocks where all of them are multiples of
// 1 / 64, as all from 0.125 (code 0x20) are. 65 blocks: three tiles, the last with half a lane.
TEST(GemmPanels, W4a4GivesTheOraclesBitsWhereScalesAreCoarseAndWhereOneIsFine) {
  StreamOwner stream(Device{}, 2);
  int compared = 0;
  GemmDesc desc = make_gemm_desc(kW4A4, 70, 65 * 16, kHost);
  desc.out = DType::F32;
  for (const int64_t fine_block : {-1, 40, 64}) {
    GemmProblem problem = make_gemm_problem(desc, 23, 14);
    for (uint8_t& scale : problem.scales[0]) {
      scale = static_cast<uint8_t>(scale < 0x20 ? scale + 0x20 : scale);
    }
    if (fine_block >= 0) {
      problem.scales[0][static_cast<size_t>(33 * 65 + fine_block)] = 0x1F;
    }
    GemmProblem changed = problem;
    changed.scales[0][33 * 65 + 64] ^= 1;  // a block of the last tile
    const auto oracle = run_gemm(**select_gemm(desc, "reference"), problem, stream.get());
    for (const char* name : {"nvfp4_w4a4_avx2", "nvfp4_w4a4_vnni"}) {
      const auto backend = select_gemm(desc, name);
      if (!backend) {
        continue;
      }
      ++compared;
      const PackedGemm packed = pack_gemm(**backend, problem, stream.get());
      EXPECT_EQ(run_gemm(**backend, problem, packed, stream.get(), 0, 23), oracle)
          << name << " fine block " << fine_block;
      const auto one = run_gemm(**backend, problem, packed, stream.get(), 22, 23);
      EXPECT_TRUE(std::equal(one.begin(), one.end(), oracle.begin() + 22 * desc.n)) << name;
      EXPECT_NE(run_gemm(**backend, changed, stream.get()), oracle) << name;
    }
  }
  if (compared == 0) {
    GTEST_SKIP() << "this cpu has no AVX2";
  }
}

// Rows beyond one row block (192) and one decoded tile (128 steps) exercise the outer loops.
TEST(GemmPanels, RowBlocksAndTilesDoNotChangeBits) {
  StreamOwner stream(Device{}, 2);
  for (QuantMode mode : {kW4A16, kW4A4, kBf16}) {
    GemmDesc desc = make_gemm_desc(mode, 72, 560, kHost);
    const GemmProblem problem = make_gemm_problem(desc, 401, 10);
    const GemmBackend& backend = **select_gemm(desc, "auto");
    const PackedGemm packed = pack_gemm(backend, problem, stream.get());
    const auto whole = run_gemm(backend, problem, packed, stream.get(), 0, 401);
    for (int64_t row : {0, 191, 192, 383, 384, 400}) {
      const auto one = run_gemm(backend, problem, packed, stream.get(), row, row + 1);
      EXPECT_TRUE(std::equal(one.begin(), one.end(), whole.begin() + row * desc.n))
          << to_string(mode) << " row " << row;
    }
  }
}

TEST(GemmPanels, NanActivationsStayInTheirRow) {
  StreamOwner stream(Device{}, 1);
  for (QuantMode mode : {kW4A16, kBf16}) {
    GemmDesc desc = make_gemm_desc(mode, 64, 64, kHost);
    GemmProblem problem = make_gemm_problem(desc, 4, 11);
    const GemmBackend& backend = **select_gemm(desc, "auto");
    const auto clean = run_gemm(backend, problem, stream.get());
    problem.x[2 * 64 + 7] = 0x7FC1;
    const auto dirty = run_gemm(backend, problem, stream.get());
    for (size_t i = 0; i < clean.size(); ++i) {
      if (i / 64 == 2) {
        EXPECT_TRUE(std::isnan(dirty[i])) << to_string(mode) << " " << i;
      } else {
        EXPECT_EQ(dirty[i], clean[i]);
      }
    }
  }
}

}  // namespace
}  // namespace nibble::test
