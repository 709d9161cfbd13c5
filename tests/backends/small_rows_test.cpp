// The row functions of AVX-512 against those of AVX2, bit for bit.
#include "backends/cpu/small_rows.h"

#include <vector>

#include <gtest/gtest.h>

#include "base/cpu_info.h"
#include "base/number_formats.h"
#include "base/random.h"

namespace nibble {
namespace {

TEST(SmallRows, HaveTheSameBitsAtEveryVectorWidth) {
  if (detect_cpu_isa() < CpuIsa::Avx512) {
    GTEST_SKIP() << "this CPU has one vector width";
  }
  const cpu::SmallOpsRows& narrow = cpu::small_rows(static_cast<int>(CpuIsa::Avx2));
  const cpu::SmallOpsRows& wide = cpu::small_rows(static_cast<int>(CpuIsa::Avx512));
  ASSERT_NE(narrow.norm, wide.norm);
  const int64_t most = 200;
  std::vector<uint16_t> x;
  std::vector<uint16_t> y;
  std::vector<float> weights;
  for (uint64_t i = 0; i < most; ++i) {
    x.push_back(float_to_bf16(static_cast<float>(random_unit(7, i) * 8.0 - 4.0)));
    y.push_back(float_to_bf16(static_cast<float>(random_unit(8, i) - 0.5)));
    weights.push_back(static_cast<float>(random_unit(9, i)));
  }
  // Where a vector's lane would be lost, rows of every width show it.
  for (int64_t width = 1; width <= most; ++width) {
    const auto same = [&](const auto& op) {
      std::vector<uint16_t> one = x;
      std::vector<uint16_t> other = x;
      op(narrow, one.data());
      op(wide, other.data());
      EXPECT_NE(one, x) << width;
      return one == other;
    };
    using cpu::SmallOpsRows;
    EXPECT_TRUE(same([&](const SmallOpsRows& rows, uint16_t* out) {
      rows.norm(x.data(), nullptr, weights.data(), 1e-6f, width, out);
    })) << width;
    EXPECT_TRUE(same([&](const SmallOpsRows& rows, uint16_t* out) {
      rows.norm(x.data(), y.data(), nullptr, 1e-6f, width, out);
    })) << width;
    EXPECT_TRUE(same([&](const SmallOpsRows& rows, uint16_t* out) {
      rows.add(out, y.data(), width);
    })) << width;
    EXPECT_TRUE(same([&](const SmallOpsRows& rows, uint16_t* out) {
      rows.silu_mul(x.data(), y.data(), width, out);
    })) << width;
    if (width <= most / 2) {
      EXPECT_TRUE(same([&](const SmallOpsRows& rows, uint16_t* out) {
        rows.rotate(out, weights.data(), weights.data() + most / 2, width);
      })) << width;
    }
  }
}

}  // namespace
}  // namespace nibble
