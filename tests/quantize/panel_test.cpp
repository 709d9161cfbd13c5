#include "quantize/panel.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "base/cpu_info.h"
#include "base/number_formats.h"

namespace nibble::quantize {
namespace {

struct Named {
  const char* name;
  const PanelKernels* kernels;
};

// Those that this CPU can run.
std::vector<Named> kernels_here() {
  std::vector<Named> all{{"scalar", &kPanelScalar}};
  if (detect_cpu_isa() >= CpuIsa::Avx2) {
    all.push_back({"avx2", &kPanelAvx2});
  }
  if (detect_cpu_isa() >= CpuIsa::Avx512) {
    all.push_back({"avx512", &kPanelAvx512});
  }
  return all;
}

std::vector<float> random_values(size_t count, float size, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

struct Chosen {
  std::vector<float> q = std::vector<float>(kPanelBlock * kLanes);
  std::vector<int32_t> codes = std::vector<int32_t>(kLanes);
};

Chosen sweep(const PanelKernels& kernels,
             const std::vector<float>& w,
             const std::vector<float>& weight,
             float global,
             int lowest,
             int highest) {
  Chosen chosen;
  const SweepTask task{
      w.data(), weight.data(), global, lowest, highest, chosen.q.data(), chosen.codes.data()};
  kernels.sweep(&task);
  return chosen;
}

// Weighted squared error of one lane with a scale code.
float error_with(const std::vector<float>& w,
                 const std::vector<float>& weight,
                 int64_t lane,
                 int code,
                 float global) {
  const float scale = e4m3_to_float(static_cast<uint8_t>(code)) * global;
  float sum = 0;
  for (size_t k = 0; k < kPanelBlock; ++k) {
    const float value = w[k * kLanes + static_cast<size_t>(lane)];
    const float e =
        std::fabs(value) - e2m1_to_float(float_to_e2m1(std::fabs(value) / scale)) * scale;
    sum += weight[k] * e * e;
  }
  return sum;
}

// Tiles of every width: their remainders depend on the number of panels.
TEST(Panel, AccumulateAddsAProductToEachPanelAndNothingBeside) {
  constexpr int64_t kRows = 16;
  constexpr int64_t kDepth = 19;
  constexpr int64_t kPanels = 5;
  constexpr int64_t kStride = 40;
  const auto a = random_values(kDepth * 48, 1.0f);
  const auto b = random_values(kPanels * kDepth * kLanes, 1.0f, 2);
  for (const auto& [name, kernels] : kernels_here()) {
    for (int64_t panels = 1; panels <= kPanels; ++panels) {
      SCOPED_TRACE(name + std::to_string(panels));
      std::vector<float> c(kPanels * kRows * kStride, 0.5f);
      const ProductTask task{.panels = panels,
                             .rows = kRows,
                             .depth = kDepth,
                             .a = a.data(),
                             .a_stride = 48,
                             .b = b.data(),
                             .b_panel = kDepth * kLanes,
                             .c = c.data(),
                             .c_panel = kRows * kStride,
                             .c_stride = kStride};
      kernels->accumulate(&task);
      for (int64_t at = 0; at < kPanels * kRows * kStride; ++at) {
        const int64_t panel = at / (kRows * kStride);
        const int64_t i = at / kStride % kRows;
        const int64_t lane = at % kStride;
        double expected = 0.5;
        for (int64_t d = 0; d < kDepth && lane < kLanes && panel < panels; ++d) {
          expected +=
              static_cast<double>(a[static_cast<size_t>(d * 48 + i)]) *
              static_cast<double>(b[static_cast<size_t>((panel * kDepth + d) * kLanes + lane)]);
        }
        EXPECT_NEAR(c[static_cast<size_t>(at)], expected, 1e-4);
      }
    }
  }
}

TEST(Panel, AWideSweepFindsTheBestOfAllScales) {
  const auto w = random_values(kPanelBlock * kLanes, 0.03f);
  std::vector<float> weight = random_values(kPanelBlock, 1.0f, 3);
  for (float& value : weight) {
    value = std::fabs(value) + 0.01f;
  }
  const float global = 0.0001f;
  for (const auto& [name, kernels] : kernels_here()) {
    SCOPED_TRACE(name);
    const Chosen chosen = sweep(*kernels, w, weight, global, -126, 126);
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      float best = std::numeric_limits<float>::infinity();
      for (int code = 1; code <= 126; ++code) {
        best = std::min(best, error_with(w, weight, lane, code, global));
      }
      const float found =
          error_with(w, weight, lane, chosen.codes[static_cast<size_t>(lane)], global);
      EXPECT_LE(found, best * 1.0001f) << lane;
      EXPECT_GT(found, 0.0f);
    }
  }
}

TEST(Panel, ZeroBlocksGetCodeOneAndScalesStayInRange) {
  const std::vector<float> ones(kPanelBlock, 1.0f);
  for (const auto& [name, kernels] : kernels_here()) {
    SCOPED_TRACE(name);
    std::vector<float> w(kPanelBlock * kLanes, 0.0f);
    w[1] = 1e6f;   // lane 1: above every scale
    w[2] = 1e-7f;  // lane 2: below every scale
    w[3] = -0.0f;
    const Chosen chosen = sweep(*kernels, w, ones, 0.001f, -8, 6);
    EXPECT_EQ(chosen.codes[0], 1);
    EXPECT_EQ(chosen.q[0], 0.0f);
    EXPECT_EQ(chosen.codes[1], 126);
    EXPECT_FLOAT_EQ(chosen.q[1], 2.688f);
    EXPECT_EQ(chosen.codes[2], 1);
    EXPECT_EQ(chosen.codes[3], 1);
  }
}

TEST(Panel, EqualCandidatesKeepTheLowerCode) {
  const std::vector<float> ones(kPanelBlock, 1.0f);
  for (const auto& [name, kernels] : kernels_here()) {
    SCOPED_TRACE(name);
    // 4 * scale is exact for the code of 1.5 (4), 3 for that of 2, 2 for 3, 1.5 for 4, 1 for 6.
    std::vector<float> w(kPanelBlock * kLanes, 0.0f);
    w[0] = 6.0f;
    const Chosen all = sweep(*kernels, w, ones, 1.0f, -126, 126);
    EXPECT_EQ(all.codes[0], float_to_e4m3(1.0f));
    const Chosen above = sweep(*kernels, w, ones, 1.0f, 1, 126);
    EXPECT_EQ(above.codes[0], float_to_e4m3(1.5f));
  }
}

TEST(Panel, SubnormalScalesHaveTheirOwnStep) {
  const std::vector<float> ones(kPanelBlock, 1.0f);
  for (const auto& [name, kernels] : kernels_here()) {
    SCOPED_TRACE(name);
    for (int code = 1; code <= 7; ++code) {
      std::vector<float> w(kPanelBlock * kLanes, 0.0f);
      const float scale = static_cast<float>(code) * 0.001953125f;
      w[0] = 6.0f * scale;
      w[kLanes] = 5.0f * scale;  // a tie, to even: 4
      const Chosen chosen = sweep(*kernels, w, ones, 1.0f, 0, 0);
      EXPECT_EQ(chosen.codes[0], code);
      EXPECT_EQ(chosen.q[0], 6.0f * scale);
      EXPECT_EQ(chosen.q[kLanes], 4.0f * scale);
    }
  }
}

TEST(Panel, TiesGoToEvenCodes) {
  const std::vector<float> ones(kPanelBlock, 1.0f);
  const std::vector<std::pair<float, float>> ties = {{0.25f, 0.0f},
                                                     {0.75f, 1.0f},
                                                     {1.25f, 1.0f},
                                                     {1.75f, 2.0f},
                                                     {2.5f, 2.0f},
                                                     {3.5f, 4.0f},
                                                     {5.0f, 4.0f},
                                                     {7.0f, 6.0f}};
  for (const auto& [name, kernels] : kernels_here()) {
    SCOPED_TRACE(name);
    std::vector<float> w(kPanelBlock * kLanes, 0.0f);
    w[15 * kLanes] = 6.0f;  // its scale is 1
    for (size_t i = 0; i + 1 < ties.size(); ++i) {
      w[i * kLanes] = -ties[i].first;
    }
    const Chosen chosen = sweep(*kernels, w, ones, 1.0f, 0, 0);
    for (size_t i = 0; i + 1 < ties.size(); ++i) {
      EXPECT_EQ(chosen.q[i * kLanes], -ties[i].second) << ties[i].first;
    }
  }
}

TEST(Panel, LanesDoNotTouchEachOther) {
  const auto w = random_values(kPanelBlock * kLanes, 0.03f);
  const std::vector<float> ones(kPanelBlock, 1.0f);
  for (const auto& [name, kernels] : kernels_here()) {
    SCOPED_TRACE(name);
    const Chosen together = sweep(*kernels, w, ones, 0.0001f, -8, 6);
    std::vector<float> alone(w.size(), 0.0f);
    for (size_t k = 0; k < kPanelBlock; ++k) {
      alone[k * kLanes + 7] = w[k * kLanes + 7];
    }
    EXPECT_EQ(sweep(*kernels, alone, ones, 0.0001f, -8, 6).codes[7], together.codes[7]);
  }
}

TEST(Panel, SoftmaxIsCausalAndSumsToOne) {
  for (const auto& [name, kernels] : kernels_here()) {
    SCOPED_TRACE(name);
    constexpr int64_t kRows = 64;
    constexpr int64_t kStride = 48;
    auto x = random_values(kRows * kStride, 30.0f);
    const auto before = x;
    kernels->softmax(kRows, 32, 0.125f, x.data(), kStride);
    for (int64_t t = 0; t < kLanes; ++t) {
      double total = 0;
      for (int64_t s = 0; s <= 32 + t; ++s) {
        total +=
            std::exp(0.125 * static_cast<double>(before[static_cast<size_t>(s * kStride + t)]));
      }
      for (int64_t s = 0; s < kRows; ++s) {
        const auto at = static_cast<size_t>(s * kStride + t);
        const double expected =
            s <= 32 + t ? std::exp(0.125 * static_cast<double>(before[at])) / total : 0.0;
        ASSERT_NEAR(x[at], expected, 1e-5 * expected + 1e-9);
      }
    }
    EXPECT_EQ(x[kLanes], before[kLanes]);  // beyond the panel
  }
}

}  // namespace
}  // namespace nibble::quantize
