#include <cmath>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/experts.h"
#include "tensor/device_api.h"

namespace nibble {
namespace {

using testing::ElementsAre;

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed route(const RouterDesc& desc, std::vector<float> logits, std::vector<float> bias = {}) {
  StreamOwner stream(Device{}, 2);
  const auto tokens = static_cast<int64_t>(logits.size()) / desc.experts;
  Routed out;
  out.ids.resize(static_cast<size_t>(tokens * desc.topk));
  out.weights.resize(out.ids.size());
  const auto view = [](auto& values, DType dtype, Shape shape) {
    return Tensor{values.data(), dtype, shape, Device{}};
  };
  router(Device::Kind::Cpu)
      .route(desc,
             view(logits, DType::F32, {tokens, desc.experts}),
             bias.empty() ? Tensor{} : view(bias, DType::F32, {desc.experts}),
             view(out.ids, DType::I32, {tokens, desc.topk}),
             view(out.weights, DType::F32, {tokens, desc.topk}),
             stream.get());
  return out;
}

TEST(RouterCpu, TakesTheLargestSoftmaxProbabilitiesBestFirst) {
  const Routed routed = route({.experts = 4, .topk = 2}, {0.0f, 2.0f, 1.0f, -1.0f});
  EXPECT_THAT(routed.ids, ElementsAre(1, 2));
  const double sum = 1.0 + std::exp(2.0) + std::exp(1.0) + std::exp(-1.0);
  EXPECT_NEAR(routed.weights[0], std::exp(2.0) / sum, 1e-6);
  EXPECT_NEAR(routed.weights[1], std::exp(1.0) / sum, 1e-6);
}

TEST(RouterCpu, NormalizesOverTheChosenAndScalesAfterwards) {
  const Routed routed =
      route({.experts = 4, .topk = 2, .normalize = true, .scale = 2.5f}, {0.0f, 2.0f, 1.0f, -1.0f});
  EXPECT_NEAR(routed.weights[0] + routed.weights[1], 2.5f, 1e-6);
  EXPECT_NEAR(routed.weights[0] / routed.weights[1], std::exp(1.0), 1e-5);
}

TEST(RouterCpu, EqualScoresGoToTheLowerId) {
  const Routed routed = route({.experts = 5, .topk = 3}, {1.0f, 3.0f, 1.0f, 3.0f, 1.0f});
  EXPECT_THAT(routed.ids, ElementsAre(1, 3, 0));
}

TEST(RouterCpu, TheBiasChangesTheChoiceButNotTheWeight) {
  const RouterDesc desc{.experts = 3, .topk = 1, .score = RouterScore::Sigmoid};
  EXPECT_THAT(route(desc, {0.0f, 1.0f, 0.5f}).ids, ElementsAre(1));
  const Routed biased = route(desc, {0.0f, 1.0f, 0.5f}, {0.9f, 0.0f, 0.0f});
  EXPECT_THAT(biased.ids, ElementsAre(0));
  EXPECT_NEAR(biased.weights[0], 0.5f, 1e-6);
}

TEST(RouterCpu, GroupsLimitTheChoice) {
  // Two groups of three: the best expert overall is in group 1, the best pair in group 0.
  const std::vector<float> logits{2.0f, 1.9f, -5.0f, 2.1f, -5.0f, -5.0f};
  RouterDesc desc{.experts = 6, .topk = 2, .score = RouterScore::Sigmoid};
  desc.groups = 2;
  desc.topk_groups = 1;
  EXPECT_THAT(route(desc, logits).ids, ElementsAre(3, 4));
  EXPECT_THAT(route(desc, logits, std::vector<float>(6, 0.0f)).ids, ElementsAre(0, 1));
}

TEST(RouterCpu, ANanLogitMarksItsTokenAndNoOther) {
  const float nan = std::nanf("");
  for (const RouterScore score : {RouterScore::Softmax, RouterScore::Sigmoid}) {
    const Routed routed =
        route({.experts = 4, .topk = 2, .score = score}, {1, 2, nan, 3, 0, 3, 1, 2});
    EXPECT_NE(routed.ids[0], routed.ids[1]);
    EXPECT_TRUE(std::isnan(routed.weights[0]) && std::isnan(routed.weights[1]));
    EXPECT_EQ(routed.ids[2], 1);
    EXPECT_EQ(routed.ids[3], 3);
    EXPECT_FALSE(std::isnan(routed.weights[2]) || std::isnan(routed.weights[3]));
  }
}

TEST(RouterCpu, EachTokenIsRoutedByItself) {
  std::vector<float> logits(40 * 8);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = std::sin(static_cast<float>(i * i));
  }
  const RouterDesc desc{.experts = 8, .topk = 3};
  const Routed all = route(desc, logits);
  const Routed last = route(desc, std::vector<float>(logits.end() - 8, logits.end()));
  EXPECT_TRUE(std::equal(last.ids.begin(), last.ids.end(), all.ids.end() - 3));
  EXPECT_TRUE(std::equal(last.weights.begin(), last.weights.end(), all.weights.end() - 3));
}

}  // namespace
}  // namespace nibble
