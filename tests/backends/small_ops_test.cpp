#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backends/cpu/weighted_sum.h"
#include "base/cpu_info.h"
#include "base/number_formats.h"
#include "ops/kernels.h"
#include "support/device_memory.h"
#include "tensor/device_api.h"

namespace nibble {
namespace {

using test::VisibleVector;

struct Target {
  Device::Kind device;
  int isa;
};

// GoogleTest looks for this name.  NOLINTNEXTLINE(readability-identifier-naming)
void PrintTo(const Target& target, std::ostream* out) {
  *out << to_string(target.device) << ' ' << target.isa;
}

// Every level of the CPU and the GPU of this machine: all must compute the same formulas.
class SmallOpsOf : public testing::TestWithParam<Target> {
 protected:
  VisibleVector<uint16_t> random_bf16(size_t count) {
    std::normal_distribution<float> normal;
    VisibleVector<uint16_t> values(count);
    for (uint16_t& value : values) {
      value = float_to_bf16(normal(random_));
    }
    return values;
  }
  // NaN until written.
  static VisibleVector<uint16_t> poisoned(size_t count) {
    return VisibleVector<uint16_t>(count, 0xFFFF);
  }
  template <typename T>
  static Tensor view(VisibleVector<T>& values, DType dtype, Shape shape) {
    return {values.data(), dtype, shape, Device{GetParam().device, 0}};
  }
  static Tensor bf16(VisibleVector<uint16_t>& values, Shape shape) {
    return view(values, DType::BF16, shape);
  }
  // Calls an operation of the table and waits for it.
  template <typename Function, typename... Arguments>
  void run(Function function, const Arguments&... arguments) {
    function(arguments..., stream_.get());
    device_api(stream_.get().device).synchronize(stream_.get());
  }
  // One bf16 rounding of the exact answer, give or take one step for the FP32 inside.
  static void expect_close(uint16_t got, double want) {
    EXPECT_NEAR(bf16_to_float(got), want, std::fabs(want) * 0.008 + 1e-6);
  }
  std::mt19937_64 random_{7};
  StreamOwner stream_{Device{GetParam().device, 0}, 3};
  const SmallOps& ops_ = small_ops(GetParam().device, GetParam().isa);
};

TEST_P(SmallOpsOf, EmbeddingCopiesTheRowsOfTheIds) {
  auto table = random_bf16(10 * 24);
  VisibleVector<int32_t> ids{9, 0, 3, 3};
  auto out = poisoned(4 * 24);
  run(ops_.embedding, view(ids, DType::I32, {4}), bf16(table, {10, 24}), bf16(out, {4, 24}));
  for (size_t t = 0; t < 4; ++t) {
    for (size_t i = 0; i < 24; ++i) {
      EXPECT_EQ(out[t * 24 + i], table[static_cast<size_t>(ids[t]) * 24 + i]);
    }
  }
}

TEST_P(SmallOpsOf, RmsNormMatchesTheFormulaAndMayWorkInPlace) {
  for (int64_t width : {1, 7, 64, 577, 4096, 9000}) {
    const auto size = static_cast<size_t>(width);
    auto x = random_bf16(5 * size);
    auto weight = random_bf16(size);
    auto out = poisoned(x.size());
    run(ops_.rms_norm, bf16(x, {5, width}), bf16(weight, {width}), 1e-5f, bf16(out, {5, width}));
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
    VisibleVector<float> weight_f32;
    for (uint16_t word : weight) {
      weight_f32.push_back(bf16_to_float(word));
    }
    run(ops_.rms_norm,
        bf16(x, {5, width}),
        view(weight_f32, DType::F32, {width}),
        1e-5f,
        bf16(x, {5, width}));
    EXPECT_EQ(x, out);
  }
}

TEST_P(SmallOpsOf, AddRmsNormIsAddThenRmsNorm) {
  auto x = random_bf16(4 * 96);
  auto residual = random_bf16(4 * 96);
  auto weight = random_bf16(96);
  auto sum = residual;
  run(ops_.add, bf16(sum, {4, 96}), bf16(x, {4, 96}));
  for (size_t i = 0; i < sum.size(); ++i) {
    EXPECT_EQ(sum[i], float_to_bf16(bf16_to_float(x[i]) + bf16_to_float(residual[i])));
  }
  auto want = poisoned(x.size());
  run(ops_.rms_norm, bf16(sum, {4, 96}), bf16(weight, {96}), 1e-6f, bf16(want, {4, 96}));
  auto out = poisoned(x.size());
  run(ops_.add_rms_norm,
      bf16(x, {4, 96}),
      bf16(residual, {4, 96}),
      bf16(weight, {96}),
      1e-6f,
      bf16(out, {4, 96}));
  EXPECT_EQ(residual, sum);
  EXPECT_EQ(out, want);
}

TEST_P(SmallOpsOf, HeadRmsNormTouchesOnlyItsStridedHeads) {
  // q of a fused [tokens, 3 * 32] row: the first two of three heads.
  auto fused = random_bf16(6 * 96);
  const auto before = fused;
  auto weight = random_bf16(32);
  Tensor q = bf16(fused, {6, 2, 32});
  q.stride[0] = 96;
  run(ops_.head_rms_norm, q, bf16(weight, {32}), 1e-6f);
  for (size_t t = 0; t < 6; ++t) {
    for (size_t i = 64; i < 96; ++i) {
      EXPECT_EQ(fused[t * 96 + i], before[t * 96 + i]);
    }
  }
  auto head = VisibleVector<uint16_t>(before.begin() + 96 + 32, before.begin() + 96 + 64);
  auto want = poisoned(32);
  run(ops_.rms_norm, bf16(head, {1, 32}), bf16(weight, {32}), 1e-6f, bf16(want, {1, 32}));
  EXPECT_EQ(want, VisibleVector<uint16_t>(fused.begin() + 96 + 32, fused.begin() + 96 + 64));
}

TEST_P(SmallOpsOf, RopeRotatesPairsAcrossTheHalfAndLeavesTheRest) {
  // 2 heads of 20 with 16 rotary channels; positions 0 (identity) and 5.
  auto q = random_bf16(2 * 2 * 20);
  auto k = random_bf16(2 * 1 * 20);
  const auto q_before = q;
  const auto k_before = k;
  VisibleVector<int32_t> positions{0, 5};
  VisibleVector<float> table(8 * 16);
  for (size_t p = 0; p < 8; ++p) {
    for (size_t i = 0; i < 8; ++i) {
      const double angle = static_cast<double>(p) * std::pow(10000.0, -static_cast<double>(i) / 8);
      table[p * 16 + i] = static_cast<float>(std::cos(angle));
      table[p * 16 + 8 + i] = static_cast<float>(std::sin(angle));
    }
  }
  run(ops_.rope,
      bf16(q, {2, 2, 20}),
      bf16(k, {2, 1, 20}),
      view(positions, DType::I32, {2}),
      view(table, DType::F32, {8, 16}));
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

TEST_P(SmallOpsOf, SiluMulGatesTheSecondHalfOfTheRow) {
  for (int64_t width : {3, 16, 150, 2568}) {
    const auto size = static_cast<size_t>(width);
    auto x = random_bf16(4 * 2 * size);
    x[0] = float_to_bf16(-90.0f);  // far in the tail: zero, not NaN
    x[1] = float_to_bf16(90.0f);
    auto out = poisoned(4 * size);
    run(ops_.silu_mul, bf16(x, {4, 2 * width}), bf16(out, {4, width}));
    for (size_t t = 0; t < 4; ++t) {
      for (size_t i = 0; i < size; ++i) {
        const double gate = bf16_to_float(x[t * 2 * size + i]);
        const double up = bf16_to_float(x[t * 2 * size + size + i]);
        expect_close(out[t * size + i], gate / (1.0 + std::exp(-gate)) * up);
      }
    }
  }
}

TEST_P(SmallOpsOf, StoreKvWritesEachTokenToItsSlotOnly) {
  auto k = random_bf16(3 * 2 * 8);
  auto v = random_bf16(3 * 2 * 8);
  VisibleVector<uint16_t> k_cache(4 * 4 * 16, 0x1234);
  auto v_cache = k_cache;
  VisibleVector<int32_t> slots{13, 2, 3};
  run(ops_.store_kv,
      bf16(k, {3, 2, 8}),
      bf16(v, {3, 2, 8}),
      view(slots, DType::I32, {3}),
      bf16(k_cache, {4, 4, 2, 8}),
      bf16(v_cache, {4, 4, 2, 8}));
  VisibleVector<uint16_t> want(k_cache.size(), 0x1234);
  auto want_v = want;
  for (size_t t = 0; t < 3; ++t) {
    std::copy_n(&k[t * 16], 16, &want[static_cast<size_t>(slots[t]) * 16]);
    std::copy_n(&v[t * 16], 16, &want_v[static_cast<size_t>(slots[t]) * 16]);
  }
  EXPECT_EQ(k_cache, want);
  EXPECT_EQ(v_cache, want_v);
}

TEST_P(SmallOpsOf, StoreKvInE4m3RoundsWhatTheScaleLeaves) {
  auto k = random_bf16(3 * 2 * 20);
  auto v = random_bf16(3 * 2 * 20);
  k[0] = float_to_bf16(1e4f);  // beyond the largest code
  k[1] = float_to_bf16(-1e-6f);
  VisibleVector<uint8_t> k_cache(4 * 4 * 40, 0x12);
  auto v_cache = k_cache;
  VisibleVector<int32_t> slots{13, 2, 3};
  VisibleVector<float> scales{0.75f, 3.0f};
  const auto scale = [&](size_t i) {
    Tensor one = view(scales, DType::F32, {});
    one.data = &scales[i];
    return one;
  };
  run(ops_.store_kv_e4m3,
      bf16(k, {3, 2, 20}),
      bf16(v, {3, 2, 20}),
      view(slots, DType::I32, {3}),
      scale(0),
      scale(1),
      view(k_cache, DType::E4M3, {4, 4, 2, 20}),
      view(v_cache, DType::E4M3, {4, 4, 2, 20}));
  VisibleVector<uint8_t> want(k_cache.size(), 0x12);
  auto want_v = want;
  for (size_t t = 0; t < 3; ++t) {
    for (size_t i = 0; i < 40; ++i) {
      const size_t at = static_cast<size_t>(slots[t]) * 40 + i;
      want[at] = float_to_e4m3(bf16_to_float(k[t * 40 + i]) / 0.75f);
      want_v[at] = float_to_e4m3(bf16_to_float(v[t * 40 + i]) / 3.0f);
    }
  }
  EXPECT_EQ(k_cache, want);
  EXPECT_EQ(v_cache, want_v);
  EXPECT_EQ(k_cache[13 * 40], 0x7E);  // 448
}

TEST_P(SmallOpsOf, PreparingQkvIsNormRotationAndStoreBitForBit) {
  if (ops_.prepare_qkv == nullptr) {
    GTEST_SKIP() << "this table has no such kernel";
  }
  struct Sizes {
    int64_t head_dim, rotary;
    bool norm;
    int64_t tokens, heads;
  };
  // Few tokens, and so many that blocks have several heads of each kind.
  for (const Sizes& sizes : {Sizes{128, 128, true, 5, 3},
                             Sizes{64, 64, false, 5, 3},
                             Sizes{64, 32, true, 5, 3},
                             Sizes{20, 16, true, 5, 3},
                             Sizes{128, 128, true, 600, 19},
                             Sizes{256, 64, true, 1100, 3}}) {
    const int64_t dim = sizes.head_dim;
    const int64_t tokens = sizes.tokens;
    const int64_t pages = tokens / 4 + 3;
    const int64_t width = (sizes.heads + 4) * dim;  // q, then 2 heads of k and of v
    auto fused = random_bf16(static_cast<size_t>(tokens * width));
    auto apart = fused;
    auto q_weight = random_bf16(static_cast<size_t>(dim));
    auto k_weight = random_bf16(static_cast<size_t>(dim));
    VisibleVector<int32_t> positions(static_cast<size_t>(tokens));
    VisibleVector<int32_t> slots(static_cast<size_t>(tokens));
    for (size_t i = 0; i < positions.size(); ++i) {
      positions[i] = static_cast<int32_t>(i * 3 % 8);
      slots[i] = i % 5 == 1 ? -1 : static_cast<int32_t>(4 * pages - 2) - static_cast<int32_t>(i);
    }
    VisibleVector<float> table(8 * static_cast<size_t>(sizes.rotary));
    for (size_t i = 0; i < table.size(); ++i) {
      table[i] = std::sin(static_cast<float>(i));
    }
    const auto cache_size = static_cast<size_t>(pages * 4 * 2 * dim);
    auto caches = std::vector<VisibleVector<uint16_t>>(4, poisoned(cache_size));
    const auto views = [&](VisibleVector<uint16_t>& rows) {
      QkvArgs args;
      const auto heads = [&](int64_t begin, int64_t count) {
        Tensor view = bf16(rows, {tokens, count, dim});
        view.data = rows.data() + begin * dim;
        view.stride[0] = width;
        return view;
      };
      args.q = heads(0, sizes.heads);
      args.k = heads(sizes.heads, 2);
      args.v = heads(sizes.heads + 2, 2);
      return args;
    };
    const Tensor cos_sin = view(table, DType::F32, {8, sizes.rotary});
    QkvArgs args = views(fused);
    if (sizes.norm) {
      args.q_weight = bf16(q_weight, {dim});
      args.k_weight = bf16(k_weight, {dim});
      args.eps = 1e-6f;
    }
    args.positions = view(positions, DType::I32, {tokens});
    args.slots = view(slots, DType::I32, {tokens});
    args.cos_sin = cos_sin;
    args.k_cache = bf16(caches[0], {pages, 4, 2, dim});
    args.v_cache = bf16(caches[1], {pages, 4, 2, dim});
    run(ops_.prepare_qkv, args);

    const QkvArgs want = views(apart);
    if (sizes.norm) {
      run(ops_.head_rms_norm, want.q, bf16(q_weight, {dim}), 1e-6f);
      run(ops_.head_rms_norm, want.k, bf16(k_weight, {dim}), 1e-6f);
    }
    run(ops_.rope, want.q, want.k, args.positions, cos_sin);
    run(ops_.store_kv,
        want.k,
        want.v,
        args.slots,
        bf16(caches[2], {pages, 4, 2, dim}),
        bf16(caches[3], {pages, 4, 2, dim}));
    for (int64_t t = 0; t < tokens; ++t) {
      EXPECT_TRUE(std::equal(fused.begin() + t * width,
                             fused.begin() + t * width + sizes.heads * dim,
                             apart.begin() + t * width))
          << dim << " token " << t;
    }
    EXPECT_EQ(caches[0], caches[2]) << dim;
    EXPECT_EQ(caches[1], caches[3]) << dim;
    EXPECT_NE(caches[0], caches[1]);
  }
}

TEST_P(SmallOpsOf, DrawnTokensAreTheLargestOrWhereTheShareFalls) {
  if (ops_.draw_tokens == nullptr) {
    GTEST_SKIP() << "this table has no such kernel";
  }
  for (const int64_t vocab : {5, 512, 10007}) {
    constexpr size_t kRows = 9;
    const auto size = static_cast<size_t>(vocab);
    std::normal_distribution<float> normal(0.0f, 2.0f);
    VisibleVector<float> logits(kRows * size);
    for (float& logit : logits) {
      logit = normal(random_);
    }
    std::fill_n(logits.begin() + 2 * vocab, vocab, 1.5f);  // all equal: the lowest id
    logits[3 * size + 2] = -std::numeric_limits<float>::infinity();
    logits[4 * size + 3] = std::numeric_limits<float>::quiet_NaN();
    logits[5 * size + 1] = std::numeric_limits<float>::infinity();
    std::fill_n(logits.begin() + 6 * vocab, vocab, -std::numeric_limits<float>::infinity());
    VisibleVector<DrawRequest> requests(kRows);
    for (size_t row : {1u, 3u, 7u, 8u}) {
      requests[row].greedy = 0;
      requests[row].scale = row == 7 ? 0.5 : 1.25;
      requests[row].unit = row == 8 ? 1.0 - 0x1.0p-53 : 0.1 * static_cast<double>(row);
    }
    for (size_t row : {0u, 2u, 8u}) {
      requests[row].candidates = 1;
    }
    VisibleVector<DrawResult> results(kRows);
    VisibleVector<DrawResult> shown(kRows);
    VisibleVector<DrawCandidate> candidates(kRows * kDrawCandidates, DrawCandidate{0.0f, -7});
    VisibleVector<uint8_t> workspace(static_cast<size_t>(ops_.draw_workspace_bytes(kRows)), 0xFF);
    const auto raw = [&](auto& values) {
      const auto bytes = static_cast<int64_t>(values.size() * sizeof(values[0]));
      return Tensor(values.data(), DType::U8, {bytes}, Device{GetParam().device, 0});
    };
    run(ops_.draw_tokens,
        view(logits, DType::F32, {static_cast<int64_t>(kRows), vocab}),
        raw(requests),
        raw(workspace),
        raw(results),
        raw(shown),
        raw(candidates));
    for (size_t row = 0; row < kRows; ++row) {
      EXPECT_EQ(shown[row].token, results[row].token) << row;
      if (row >= 4 && row <= 6) {
        EXPECT_EQ(results[row].token, -1) << "row " << row << " is not finite";
        continue;
      }
      const std::span<const float> values(logits.data() + row * size, size);
      const auto top = std::max_element(values.begin(), values.end());
      double total = 0;
      for (const float value : values) {
        total += std::exp(static_cast<double>(value) * requests[row].scale);
      }
      auto want = static_cast<int32_t>(top - values.begin());
      const auto* found = candidates.data() + row * kDrawCandidates;
      EXPECT_EQ(found[0].token == -7, requests[row].candidates == 0) << row;
      if (requests[row].candidates != 0) {
        std::vector<std::pair<float, int32_t>> best;  // the best first, the lowest id among equals
        std::vector<std::pair<float, int32_t>> got;
        const size_t kept = std::min<size_t>(size, kDrawCandidates);
        best.reserve(size);
        got.reserve(kept);
        for (size_t i = 0; i < size; ++i) {
          best.emplace_back(-values[i], static_cast<int32_t>(i));
        }
        for (size_t i = 0; i < kept; ++i) {
          got.emplace_back(-found[i].logit, found[i].token);
        }
        std::sort(best.begin(), best.end());
        std::sort(got.begin(), got.end());
        best.resize(kept);
        EXPECT_EQ(got, best) << "row " << row << " of " << vocab;
      }
      if (requests[row].greedy == 0 && requests[row].candidates == 0) {
        double sum = 0;
        want = static_cast<int32_t>(vocab) - 1;
        for (size_t i = 0; i < size; ++i) {
          sum += std::exp(static_cast<double>(values[i]) * requests[row].scale);
          if (requests[row].unit * total < sum) {
            want = static_cast<int32_t>(i);
            break;
          }
        }
      }
      EXPECT_EQ(results[row].token, want) << "row " << row << " of " << vocab;
      EXPECT_EQ(results[row].logit, values[static_cast<size_t>(want)]);
      EXPECT_NEAR(results[row].log_total, std::log(total), 1e-9);
    }
  }
}

TEST_P(SmallOpsOf, GatherRowsTakesRowsInTheOrderAsked) {
  auto x = random_bf16(5 * 12);
  VisibleVector<int32_t> rows{4, 1};
  auto out = poisoned(2 * 12);
  run(ops_.gather_rows, bf16(x, {5, 12}), view(rows, DType::I32, {2}), bf16(out, {2, 12}));
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + 12, x.begin() + 48));
  EXPECT_TRUE(std::equal(out.begin() + 12, out.end(), x.begin() + 12));
}

TEST_P(SmallOpsOf, ThreadCountDoesNotChangeBits) {
  auto x = random_bf16(300 * 2 * 200);
  auto one = poisoned(300 * 200);
  auto many = one;
  StreamOwner single(stream_.get().device, 1);
  ops_.silu_mul(bf16(x, {300, 400}), bf16(one, {300, 200}), single.get());
  device_api(single.get().device).synchronize(single.get());
  run(ops_.silu_mul, bf16(x, {300, 400}), bf16(many, {300, 200}));
  EXPECT_EQ(one, many);
}

TEST_P(SmallOpsOf, ARowHasTheSameBitsAloneAndAmongOthers) {
  for (const int64_t width : {64, 577, 4096}) {
    const auto size = static_cast<size_t>(width);
    auto x = random_bf16(9 * size);
    auto residual = random_bf16(9 * size);
    auto weight = random_bf16(size);
    auto last = VisibleVector<uint16_t>(residual.end() - width, residual.end());
    auto last_x = VisibleVector<uint16_t>(x.end() - width, x.end());
    auto all = poisoned(9 * size);
    auto alone = poisoned(size);
    run(ops_.add_rms_norm,
        bf16(x, {9, width}),
        bf16(residual, {9, width}),
        bf16(weight, {width}),
        1e-6f,
        bf16(all, {9, width}));
    run(ops_.add_rms_norm,
        bf16(last_x, {1, width}),
        bf16(last, {1, width}),
        bf16(weight, {width}),
        1e-6f,
        bf16(alone, {1, width}));
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.end() - width)) << width;
    EXPECT_TRUE(std::equal(last.begin(), last.end(), residual.end() - width)) << width;
    EXPECT_FALSE(std::equal(alone.begin(), alone.end(), all.begin())) << width;
  }
}

TEST_P(SmallOpsOf, StridedRowsAndOddPlacesGiveTheBitsOfPlainOnes) {
  // Rows of 96 in rows of 107, from the third element on: nothing is aligned to 16 bytes.
  auto x = random_bf16(4 * 107);
  auto weight = random_bf16(96);
  Tensor strided = bf16(x, {4, 96});
  strided.data = x.data() + 3;
  strided.stride[0] = 107;
  VisibleVector<uint16_t> plain;
  for (size_t t = 0; t < 4; ++t) {
    plain.insert(plain.end(),
                 x.begin() + static_cast<std::ptrdiff_t>(t * 107 + 3),
                 x.begin() + static_cast<std::ptrdiff_t>(t * 107 + 99));
  }
  auto want = poisoned(4 * 96);
  auto got = poisoned(4 * 96);
  run(ops_.rms_norm, bf16(plain, {4, 96}), bf16(weight, {96}), 1e-6f, bf16(want, {4, 96}));
  run(ops_.rms_norm, strided, bf16(weight, {96}), 1e-6f, bf16(got, {4, 96}));
  EXPECT_EQ(got, want);
  auto gated = poisoned(4 * 48);
  auto want_gated = poisoned(4 * 48);
  run(ops_.silu_mul, bf16(plain, {4, 96}), bf16(want_gated, {4, 48}));
  run(ops_.silu_mul, strided, bf16(gated, {4, 48}));
  EXPECT_EQ(gated, want_gated);
  run(ops_.add, strided, bf16(want, {4, 96}));
  run(ops_.add, bf16(plain, {4, 96}), bf16(want, {4, 96}));
  for (size_t t = 0; t < 4; ++t) {
    EXPECT_TRUE(std::equal(plain.begin() + static_cast<std::ptrdiff_t>(t * 96),
                           plain.begin() + static_cast<std::ptrdiff_t>(t * 96 + 96),
                           x.begin() + static_cast<std::ptrdiff_t>(t * 107 + 3)));
  }
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

std::vector<Target> targets(Device::Kind device) {
  const DeviceApi* api = find_device_api(device);
  if (api == nullptr || api->num_devices() == 0) {
    return {};
  }
  std::vector<Target> all;
  const int isa = api->isa({device, 0});
  if (device == Device::Kind::Cpu && isa >= static_cast<int>(CpuIsa::Avx2)) {
    all.push_back({device, static_cast<int>(CpuIsa::Scalar)});
    all.push_back({device, static_cast<int>(CpuIsa::Avx2)});
    if (isa >= static_cast<int>(CpuIsa::Avx512)) {
      all.push_back({device, static_cast<int>(CpuIsa::Avx512)});
    }
  } else {
    all.push_back({device, isa});
  }
  return all;
}

std::string name_of(const testing::TestParamInfo<Target>& target) {
  return target.param.device == Device::Kind::Cpu
             ? std::string(to_string(static_cast<CpuIsa>(target.param.isa)))
             : "sm_" + std::to_string(target.param.isa);
}

// Without a GPU there is nothing to instantiate.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SmallOpsOf);
INSTANTIATE_TEST_SUITE_P(Cpu, SmallOpsOf, testing::ValuesIn(targets(Device::Kind::Cpu)), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, SmallOpsOf, testing::ValuesIn(targets(Device::Kind::Cuda)), name_of);

}  // namespace
}  // namespace nibble
