#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "backends/cpu/weighted_sum.h"
#include "base/cpu_info.h"
#include "base/number_formats.h"
#include "ops/kernels.h"
#include "tensor/device_api.h"

namespace nibble {
namespace {

// Every level of this machine: forced levels must compute the same formulas.
class SmallOpsCpu : public testing::TestWithParam<CpuIsa> {
 protected:
  std::vector<uint16_t> random_bf16(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<uint16_t> values(count);
    for (uint16_t& value : values) {
      value = float_to_bf16(normal(random_));
    }
    return values;
  }
  template <typename T>
  static Tensor view(std::vector<T>& values, DType dtype, Shape shape) {
    return {values.data(), dtype, shape, Device{}};
  }
  static Tensor bf16(std::vector<uint16_t>& values, Shape shape) {
    return view(values, DType::BF16, shape);
  }
  // One bf16 rounding of the exact answer, give or take one step for the FP32 inside.
  static void expect_close(uint16_t got, double want) {
    EXPECT_NEAR(bf16_to_float(got), want, std::fabs(want) * 0.008 + 1e-6);
  }
  std::mt19937_64 random_{7};
  StreamOwner stream_{Device{}, 3};
  const SmallOps& ops_ = small_ops(Device::Kind::Cpu, static_cast<int>(GetParam()));
};

TEST_P(SmallOpsCpu, EmbeddingCopiesTheRowsOfTheIds) {
  auto table = random_bf16(10 * 24);
  std::vector<int32_t> ids{9, 0, 3, 3};
  std::vector<uint16_t> out(4 * 24);
  ops_.embedding(
      view(ids, DType::I32, {4}), bf16(table, {10, 24}), bf16(out, {4, 24}), stream_.get());
  for (size_t t = 0; t < 4; ++t) {
    for (size_t i = 0; i < 24; ++i) {
      EXPECT_EQ(out[t * 24 + i], table[static_cast<size_t>(ids[t]) * 24 + i]);
    }
  }
}

TEST_P(SmallOpsCpu, RmsNormMatchesTheFormulaAndMayWorkInPlace) {
  for (int64_t width : {1, 7, 64, 577}) {
    const auto size = static_cast<size_t>(width);
    auto x = random_bf16(5 * size);
    auto weight = random_bf16(size);
    std::vector<uint16_t> out(x.size());
    ops_.rms_norm(
        bf16(x, {5, width}), bf16(weight, {width}), 1e-5f, bf16(out, {5, width}), stream_.get());
    for (size_t row = 0; row < 5; ++row) {
      double sum = 0.0;
      for (size_t i = 0; i < size; ++i) {
        sum += std::pow(bf16_to_float(x[row * size + i]), 2.0);
      }
      const double scale = 1.0 / std::sqrt(sum / static_cast<double>(width) + 1e-5);
      for (size_t i = 0; i < size; ++i) {
        expect_close(out[row * size + i],
                     bf16_to_float(x[row * size + i]) * scale * bf16_to_float(weight[i]));
      }
    }
    std::vector<float> weight_f32;
    for (uint16_t word : weight) {
      weight_f32.push_back(bf16_to_float(word));
    }
    ops_.rms_norm(bf16(x, {5, width}),
                  view(weight_f32, DType::F32, {width}),
                  1e-5f,
                  bf16(x, {5, width}),
                  stream_.get());
    EXPECT_EQ(x, out);
  }
}

TEST_P(SmallOpsCpu, AddRmsNormIsAddThenRmsNorm) {
  auto x = random_bf16(4 * 96);
  auto residual = random_bf16(4 * 96);
  auto weight = random_bf16(96);
  auto sum = residual;
  ops_.add(bf16(sum, {4, 96}), bf16(x, {4, 96}), stream_.get());
  for (size_t i = 0; i < sum.size(); ++i) {
    EXPECT_EQ(sum[i], float_to_bf16(bf16_to_float(x[i]) + bf16_to_float(residual[i])));
  }
  std::vector<uint16_t> want(x.size());
  ops_.rms_norm(bf16(sum, {4, 96}), bf16(weight, {96}), 1e-6f, bf16(want, {4, 96}), stream_.get());
  std::vector<uint16_t> out(x.size());
  ops_.add_rms_norm(bf16(x, {4, 96}),
                    bf16(residual, {4, 96}),
                    bf16(weight, {96}),
                    1e-6f,
                    bf16(out, {4, 96}),
                    stream_.get());
  EXPECT_EQ(residual, sum);
  EXPECT_EQ(out, want);
}

TEST_P(SmallOpsCpu, HeadRmsNormTouchesOnlyItsStridedHeads) {
  // q of a fused [tokens, 3 * 32] row: the first two of three heads.
  auto fused = random_bf16(6 * 96);
  const auto before = fused;
  auto weight = random_bf16(32);
  Tensor q = bf16(fused, {6, 2, 32});
  q.stride[0] = 96;
  ops_.head_rms_norm(q, bf16(weight, {32}), 1e-6f, stream_.get());
  for (size_t t = 0; t < 6; ++t) {
    for (size_t i = 64; i < 96; ++i) {
      EXPECT_EQ(fused[t * 96 + i], before[t * 96 + i]);
    }
  }
  auto head = std::vector<uint16_t>(before.begin() + 96 + 32, before.begin() + 96 + 64);
  std::vector<uint16_t> want(32);
  ops_.rms_norm(bf16(head, {1, 32}), bf16(weight, {32}), 1e-6f, bf16(want, {1, 32}), stream_.get());
  EXPECT_EQ(want, std::vector<uint16_t>(fused.begin() + 96 + 32, fused.begin() + 96 + 64));
}

TEST_P(SmallOpsCpu, RopeRotatesPairsAcrossTheHalfAndLeavesTheRest) {
  // 2 heads of 20 with 16 rotary channels; positions 0 (identity) and 5.
  auto q = random_bf16(2 * 2 * 20);
  auto k = random_bf16(2 * 1 * 20);
  const auto q_before = q;
  const auto k_before = k;
  std::vector<int32_t> positions{0, 5};
  std::vector<float> table(8 * 16);
  for (size_t p = 0; p < 8; ++p) {
    for (size_t i = 0; i < 8; ++i) {
      const double angle = static_cast<double>(p) * std::pow(10000.0, -static_cast<double>(i) / 8);
      table[p * 16 + i] = static_cast<float>(std::cos(angle));
      table[p * 16 + 8 + i] = static_cast<float>(std::sin(angle));
    }
  }
  ops_.rope(bf16(q, {2, 2, 20}),
            bf16(k, {2, 1, 20}),
            view(positions, DType::I32, {2}),
            view(table, DType::F32, {8, 16}),
            stream_.get());
  EXPECT_TRUE(std::equal(q.begin(), q.begin() + 40, q_before.begin()));
  EXPECT_TRUE(std::equal(k.begin(), k.begin() + 20, k_before.begin()));
  const auto expect_rotated = [&](const auto& after, const auto& before, size_t at) {
    for (size_t i = 0; i < 8; ++i) {
      const double low = bf16_to_float(before[at + i]);
      const double high = bf16_to_float(before[at + i + 8]);
      const double cosine = table[5 * 16 + i];
      const double sine = table[5 * 16 + 8 + i];
      EXPECT_NEAR(bf16_to_float(after[at + i]), low * cosine - high * sine, 0.02);
      EXPECT_NEAR(bf16_to_float(after[at + i + 8]), high * cosine + low * sine, 0.02);
    }
    for (size_t i = 16; i < 20; ++i) {
      EXPECT_EQ(after[at + i], before[at + i]);
    }
  };
  expect_rotated(q, q_before, 40);
  expect_rotated(q, q_before, 60);
  expect_rotated(k, k_before, 20);
}

TEST_P(SmallOpsCpu, SiluMulGatesTheSecondHalfOfTheRow) {
  for (int64_t width : {3, 16, 150}) {
    const auto size = static_cast<size_t>(width);
    auto x = random_bf16(4 * 2 * size);
    x[0] = float_to_bf16(-90.0f);  // far in the tail: zero, not NaN
    x[1] = float_to_bf16(90.0f);
    std::vector<uint16_t> out(4 * size);
    ops_.silu_mul(bf16(x, {4, 2 * width}), bf16(out, {4, width}), stream_.get());
    for (size_t t = 0; t < 4; ++t) {
      for (size_t i = 0; i < size; ++i) {
        const double gate = bf16_to_float(x[t * 2 * size + i]);
        const double up = bf16_to_float(x[t * 2 * size + size + i]);
        expect_close(out[t * size + i], gate / (1.0 + std::exp(-gate)) * up);
      }
    }
  }
}

TEST_P(SmallOpsCpu, StoreKvWritesEachTokenToItsSlotOnly) {
  auto k = random_bf16(3 * 2 * 8);
  auto v = random_bf16(3 * 2 * 8);
  std::vector<uint16_t> k_cache(4 * 4 * 16, 0x1234);
  auto v_cache = k_cache;
  std::vector<int32_t> slots{13, 2, 3};
  ops_.store_kv(bf16(k, {3, 2, 8}),
                bf16(v, {3, 2, 8}),
                view(slots, DType::I32, {3}),
                bf16(k_cache, {4, 4, 2, 8}),
                bf16(v_cache, {4, 4, 2, 8}),
                stream_.get());
  std::vector<uint16_t> want(k_cache.size(), 0x1234);
  auto want_v = want;
  for (size_t t = 0; t < 3; ++t) {
    std::copy_n(&k[t * 16], 16, &want[static_cast<size_t>(slots[t]) * 16]);
    std::copy_n(&v[t * 16], 16, &want_v[static_cast<size_t>(slots[t]) * 16]);
  }
  EXPECT_EQ(k_cache, want);
  EXPECT_EQ(v_cache, want_v);
}

TEST_P(SmallOpsCpu, GatherRowsTakesRowsInTheOrderAsked) {
  auto x = random_bf16(5 * 12);
  std::vector<int32_t> rows{4, 1};
  std::vector<uint16_t> out(2 * 12);
  ops_.gather_rows(
      bf16(x, {5, 12}), view(rows, DType::I32, {2}), bf16(out, {2, 12}), stream_.get());
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + 12, x.begin() + 48));
  EXPECT_TRUE(std::equal(out.begin() + 12, out.end(), x.begin() + 12));
}

TEST_P(SmallOpsCpu, ThreadCountDoesNotChangeBits) {
  auto x = random_bf16(300 * 2 * 200);
  std::vector<uint16_t> one(300 * 200);
  auto many = one;
  StreamOwner single(Device{}, 1);
  ops_.silu_mul(bf16(x, {300, 400}), bf16(one, {300, 200}), single.get());
  ops_.silu_mul(bf16(x, {300, 400}), bf16(many, {300, 200}), stream_.get());
  EXPECT_EQ(one, many);
}

TEST(WeightedSum, HasTheSameBitsAtEveryLevel) {
  if (detect_cpu_isa() < CpuIsa::Avx2) {
    GTEST_SKIP() << "this CPU has one level";
  }
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  constexpr int64_t kStride = 75;
  std::vector<float> rows(4 * kStride);
  std::generate(rows.begin(), rows.end(), [&] { return normal(random); });
  const std::vector<float> weights{0.5f, 0.3f, 0.2f};
  const std::vector<int32_t> places{2, 0, 3};
  const auto sum_at = [&](CpuIsa isa, int64_t begin, int64_t end) {
    std::vector<uint16_t> out(kStride, 0xFFFF);
    const auto sum = isa >= CpuIsa::Avx2 ? cpu::weighted_sum_avx2 : cpu::weighted_sum_scalar;
    sum(weights.data(), places.data(), 3, rows.data(), kStride, begin, end, out.data());
    return out;
  };
  for (const int64_t end : {1, 8, 31, 40, 75}) {
    for (const int64_t begin : {0, 1}) {
      const std::vector<uint16_t> scalar = sum_at(CpuIsa::Scalar, begin, end);
      EXPECT_EQ(sum_at(CpuIsa::Avx2, begin, end), scalar) << begin << " " << end;
      for (int64_t i = 0; i < kStride; ++i) {
        if (i < begin || i >= end) {
          EXPECT_EQ(scalar[static_cast<size_t>(i)], 0xFFFF) << "wrote outside its columns";
        }
      }
    }
  }
  EXPECT_NEAR(bf16_to_float(sum_at(CpuIsa::Scalar, 0, 1)[0]),
              0.5f * rows[2 * kStride] + 0.3f * rows[0] + 0.2f * rows[3 * kStride],
              0.02f);
}

INSTANTIATE_TEST_SUITE_P(Levels,
                         SmallOpsCpu,
                         testing::ValuesIn([] {
                           std::vector<CpuIsa> levels{CpuIsa::Scalar};
                           if (detect_cpu_isa() >= CpuIsa::Avx2) {
                             levels.push_back(CpuIsa::Avx2);
                           }
                           return levels;
                         }()),
                         [](const testing::TestParamInfo<CpuIsa>& level) {
                           return std::string(to_string(level.param));
                         });

}  // namespace
}  // namespace nibble
