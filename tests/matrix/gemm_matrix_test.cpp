// Every GEMM backend of this build on every desc of a grid that it accepts, against the float64
// product of the same codes; refusals must have words. A new line in gemm_list.cpp is enough to be
// tested here.
#include <algorithm>
#include <cmath>
#include <optional>

#include <gtest/gtest.h>

#include "support/gemm_problem.h"

namespace nibble::test {
namespace {

struct Target {
  Device device;
  int isa = 0;
  bool is_top = true;
};

// Each device of this machine, and on the CPU every level below its own too: there only the words
// of refusals are looked at.
std::vector<Target> targets() {
  std::vector<Target> all;
  for (const DeviceApi* api : device_apis()) {
    if (api->num_devices() == 0) {
      continue;
    }
    const Device device{api->kind, 0};
    const int isa = api->isa(device);
    for (int level = api->kind == Device::Kind::Cpu ? 0 : isa; level <= isa; ++level) {
      all.push_back({device, level, level == isa});
    }
  }
  return all;
}

// Levels of both kinds of device, whether this machine has them or not.
std::vector<Target> known_targets() {
  std::vector<Target> all;
  for (int level : {0, 1, 2, 3, 80, 86, 89, 90, 100, 103, 120}) {
    all.push_back({{Device::Kind::Cpu, 0}, level});
    all.push_back({{Device::Kind::Cuda, 0}, level});
  }
  return all;
}

class GemmMatrix : public testing::TestWithParam<const GemmBackend*> {
 protected:
  // Calls body(problem, stream) for each desc of the grid that the backend accepts at the highest
  // level of each device, or of the devices of one kind.
  template <typename Body>
  void for_accepted(const std::vector<GemmDesc>& grid,
                    int64_t m,
                    Body&& body,
                    std::optional<Device::Kind> only = {}) {
    uint64_t accepted = 0;
    for (const Target& target : targets()) {
      if (only && target.device.kind != *only) {
        continue;
      }
      StreamOwner stream(target.device, 2);
      for (GemmDesc desc : grid) {
        desc.device = target.device.kind;
        desc.isa = target.isa;
        const Support support = GetParam()->supports(desc);
        EXPECT_EQ(support.ok, support.why_not.empty()) << describe(desc);
        if (support.ok && target.is_top) {
          body(make_gemm_problem(desc, m, ++accepted), stream.get());
        }
      }
    }
  }

  static std::vector<GemmDesc> grid() {
    std::vector<GemmDesc> all;
    for (QuantMode mode : {kBf16, kW4A16, kW4A4, kFp8}) {
      for (int64_t k : {16, 48, 256, 576, 1040}) {
        for (std::vector<int64_t> parts : {std::vector<int64_t>{1},
                                           std::vector<int64_t>{40},
                                           std::vector<int64_t>{128},
                                           std::vector<int64_t>{13, 50, 6}}) {
          int64_t n = 0;
          for (int64_t rows : parts) {
            n += rows;
          }
          all.push_back(make_gemm_desc(mode, n, k, 0, parts));
        }
      }
    }
    return all;
  }
  static std::vector<GemmDesc> with_options() {
    std::vector<GemmDesc> all;
    for (QuantMode mode : {kBf16, kW4A16, kW4A4, kFp8}) {
      for (DType out : {DType::BF16, DType::F32}) {
        for (Epilogue epilogue : {Epilogue::None, Epilogue::Bias, Epilogue::Residual}) {
          for (bool pre_quant : {false, true}) {
            GemmDesc desc = make_gemm_desc(mode, 96, 128, 0, {64, 32});
            desc.out = out;
            desc.epilogue = epilogue;
            desc.pre_quant_scale = pre_quant;
            desc.static_input_scale = mode == kW4A4 && epilogue != Epilogue::None;
            all.push_back(desc);
          }
        }
      }
    }
    return all;
  }
  // Integer products of BF16 activations round those far below their block's largest.
  static double limit(const GemmDesc& desc) {
    const bool on_a_grid =
        GetParam()->name == "nvfp4_w4a16_avx2" || GetParam()->name == "nvfp4_w4a16_avx512";
    return desc.out == DType::F32 ? (on_a_grid ? 3e-5 : 1e-5) : 4e-3;
  }
};

TEST_P(GemmMatrix, AcceptsSomethingOnSomeDevice) {
  bool accepts = false;
  std::vector<GemmDesc> descs = grid();
  const std::vector<GemmDesc> more = with_options();
  descs.insert(descs.end(), more.begin(), more.end());
  for (const Target& target : known_targets()) {
    for (GemmDesc desc : descs) {
      desc.device = target.device.kind;
      desc.isa = target.isa;
      accepts = accepts || GetParam()->supports(desc).ok;
    }
  }
  EXPECT_TRUE(accepts) << "the other tests of this file would check nothing";
}

TEST_P(GemmMatrix, MatchesTheExactProductOnEveryShapeItAccepts) {
  for (int64_t m : {1, 2, 5, 19}) {
    for_accepted(grid(), m, [&](const GemmProblem& problem, Stream stream) {
      const double error = relative_l2(problem.expected(), run_gemm(*GetParam(), problem, stream));
      EXPECT_LE(error, limit(problem.desc)) << describe(problem.desc) << " m " << m;
    });
  }
}

// GPUs have tiles of up to 128 rows and ways of their own to share them.
TEST_P(GemmMatrix, MatchesTheExactProductOnGpusForManyRows) {
  int checked = 0;
  for (int64_t m : {40, 70, 130, 300}) {
    for_accepted(
        grid(),
        m,
        [&](const GemmProblem& problem, Stream stream) {
          const double error =
              relative_l2(problem.expected(), run_gemm(*GetParam(), problem, stream));
          EXPECT_LE(error, limit(problem.desc)) << describe(problem.desc) << " m " << m;
          ++checked;
        },
        Device::Kind::Cuda);
  }
  if (checked == 0) {
    GTEST_SKIP() << "takes nothing on the GPUs of this machine";
  }
}

TEST_P(GemmMatrix, MatchesTheExactProductWithEveryOptionItAccepts) {
  for (int64_t m : {1, 7}) {
    for_accepted(with_options(), m, [&](const GemmProblem& problem, Stream stream) {
      const double error = relative_l2(problem.expected(), run_gemm(*GetParam(), problem, stream));
      EXPECT_LE(error, limit(problem.desc)) << describe(problem.desc) << " m " << m;
    });
  }
}

TEST_P(GemmMatrix, SwappedNibblesShiftedScalesAndADroppedAlphaAreSeen) {
  const std::vector<GemmDesc> descs{make_gemm_desc(kW4A16, 128, 256, 0, {64, 64}),
                                    make_gemm_desc(kW4A4, 128, 256, 0, {64, 64})};
  for_accepted(descs, 4, [&](const GemmProblem& problem, Stream stream) {
    const auto want = problem.expected();
    const auto error_of = [&](const GemmProblem& changed) {
      return relative_l2(want, run_gemm(*GetParam(), changed, stream));
    };
    EXPECT_LE(error_of(problem), limit(problem.desc));
    GemmProblem swapped = problem;
    for (uint8_t& byte : swapped.weights[1]) {
      byte = static_cast<uint8_t>((byte >> 4) | (byte << 4));
    }
    EXPECT_GT(error_of(swapped), limit(problem.desc)) << describe(problem.desc);
    GemmProblem shifted = problem;
    std::rotate(shifted.scales[0].begin(), shifted.scales[0].begin() + 1, shifted.scales[0].end());
    EXPECT_GT(error_of(shifted), limit(problem.desc)) << describe(problem.desc);
    GemmProblem dropped = problem;
    dropped.weight_scale[1] = 1.0f;
    EXPECT_GT(error_of(dropped), limit(problem.desc)) << describe(problem.desc);
  });
}

TEST_P(GemmMatrix, RowsKeepTheirBitsForEveryRowCountAndThreadCount) {
  if (GetParam()->opt_in) {
    GTEST_SKIP() << "opt-in backends do not promise this";
  }
  std::vector<GemmDesc> descs;
  for (QuantMode mode : {kBf16, kW4A16, kW4A4, kFp8}) {
    descs.push_back(make_gemm_desc(mode, 128, 320, 0, {75, 53}));
    descs.back().out = DType::F32;
  }
  for_accepted(descs, 70, [&](const GemmProblem& problem, Stream stream) {
    const PackedGemm packed = pack_gemm(*GetParam(), problem, stream);
    const std::vector<float> whole = run_gemm(*GetParam(), problem, packed, stream, 0, 70);
    for (int64_t rows = 1; rows <= 70; ++rows) {
      const int64_t begin = (rows * 31) % (71 - rows);
      const auto some = run_gemm(*GetParam(), problem, packed, stream, begin, begin + rows);
      ASSERT_TRUE(std::equal(some.begin(), some.end(), whole.begin() + begin * problem.desc.n))
          << describe(problem.desc) << " rows " << rows;
    }
    for (int threads = 1; threads <= 4; ++threads) {
      StreamOwner other(stream.device, threads);
      for (int64_t rows : {1, 3, 70}) {
        const auto some = run_gemm(*GetParam(), problem, packed, other.get(), 0, rows);
        ASSERT_TRUE(std::equal(some.begin(), some.end(), whole.begin()))
            << describe(problem.desc) << " threads " << threads;
      }
    }
  });
}

TEST_P(GemmMatrix, RowsKeepTheirBitsAmongThousands) {
  if (GetParam()->opt_in) {
    GTEST_SKIP() << "opt-in backends do not promise this";
  }
  std::vector<GemmDesc> descs;
  for (QuantMode mode : {kBf16, kW4A16, kW4A4, kFp8}) {
    descs.push_back(make_gemm_desc(mode, 64, 128, 0, {64}));
  }
  for_accepted(descs, 1100, [&](const GemmProblem& problem, Stream stream) {
    if (stream.device.kind == Device::Kind::Cpu) {
      return;  // choose nothing by the number of rows beyond those of the test before
    }
    const PackedGemm packed = pack_gemm(*GetParam(), problem, stream);
    const std::vector<float> whole = run_gemm(*GetParam(), problem, packed, stream, 0, 1100);
    for (const int64_t rows : {1, 16, 17, 64, 65, 256, 257, 513, 1024, 1099}) {
      const auto some = run_gemm(*GetParam(), problem, packed, stream, 0, rows);
      ASSERT_TRUE(std::equal(some.begin(), some.end(), whole.begin()))
          << describe(problem.desc) << " rows " << rows;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         GemmMatrix,
                         testing::ValuesIn(gemm_backends().begin(), gemm_backends().end()),
                         [](const auto& backend) { return std::string(backend.param->name); });

}  // namespace
}  // namespace nibble::test
