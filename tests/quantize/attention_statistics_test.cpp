#include "quantize/attention_statistics.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "base/number_formats.h"

namespace nibble::quantize {
namespace {

TEST(AttentionStatistics, AreOfTheMixedTokensWhoseHeadsTakeTurns) {
  constexpr int64_t kTokens = 64;
  constexpr int64_t kHidden = 48;
  constexpr int64_t kDim = 16;
  AttentionDesc desc;
  desc.heads = 4;
  desc.kv_heads = 2;
  desc.head_dim = kDim;
  desc.scale = 0.25f;
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  const int64_t stride = (desc.heads + desc.kv_heads) * kDim;
  std::vector<uint16_t> projected(static_cast<size_t>(kTokens * stride));
  std::vector<uint16_t> x(kTokens * kHidden);
  for (auto* values : {&projected, &x}) {
    for (uint16_t& value : *values) {
      value = float_to_bf16(normal(random));
    }
  }
  Tensor q(projected.data(), DType::BF16, Shape{kTokens, desc.heads, kDim}, Device{});
  q.stride = Shape{stride, kDim, 1};
  Tensor k = q;
  k.data = projected.data() + desc.heads * kDim;
  k.shape = Shape{kTokens, desc.kv_heads, kDim};
  const Tensor input(x.data(), DType::BF16, Shape{kTokens, kHidden}, Device{});

  ThreadPool pool(2);
  std::vector<StatisticsCollector> heads;
  heads.emplace_back(kHidden, true);
  heads.emplace_back(kHidden, true);
  // Twice: the second time each query counts with the other head of its group.
  add_value_statistics(desc, q, k, input, {panel_kernels(), pool}, heads);
  add_value_statistics(desc, q, k, input, {panel_kernels(), pool}, heads);

  const auto at = [&](int64_t t, int64_t column) {
    return static_cast<double>(bf16_to_float(projected[static_cast<size_t>(t * stride + column)]));
  };
  for (int64_t group = 0; group < 2; ++group) {
    std::vector<double> expected(kHidden * kHidden, 0.0);
    for (int64_t head = 2 * group; head < 2 * group + 2; ++head) {
      for (int64_t t = 0; t < kTokens; ++t) {
        std::vector<double> weight(kTokens, 0.0);
        double total = 0;
        for (int64_t s = 0; s <= t; ++s) {
          double score = 0;
          for (int64_t d = 0; d < kDim; ++d) {
            score += at(t, head * kDim + d) * at(s, (desc.heads + group) * kDim + d);
          }
          weight[static_cast<size_t>(s)] = std::exp(0.25 * score);
          total += weight[static_cast<size_t>(s)];
        }
        std::vector<double> mixed(kHidden, 0.0);
        for (int64_t s = 0; s <= t; ++s) {
          for (size_t i = 0; i < kHidden; ++i) {
            mixed[i] += weight[static_cast<size_t>(s)] / total *
                        static_cast<double>(bf16_to_float(x[static_cast<size_t>(s) * kHidden + i]));
          }
        }
        for (size_t i = 0; i < kHidden; ++i) {
          for (size_t j = 0; j < kHidden; ++j) {
            expected[i * kHidden + j] += mixed[i] * mixed[j] / (2.0 * kTokens);
          }
        }
      }
    }
    const InputStatistics found = heads[static_cast<size_t>(group)].finish({panel_kernels(), pool});
    EXPECT_EQ(found.tokens, 2 * kTokens);
    for (int64_t i = 0; i < kHidden; ++i) {
      for (int64_t j = 0; j < kHidden; ++j) {
        ASSERT_NEAR(found.hessian.at(i, j), expected[static_cast<size_t>(i * kHidden + j)], 2e-5);
      }
    }
  }
}

}  // namespace
}  // namespace nibble::quantize
