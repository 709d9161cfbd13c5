// The CPU router: scores, group choice and top-k in scalar FP32, a token at a time.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "backends/cpu/experts_shared.h"
#include "backends/cpu/gemm_shared.h"
#include "base/check.h"
#include "ops/experts.h"

namespace nibble {

namespace {

using namespace nibble::cpu;  // NOLINT(google-build-using-namespace): the folder's own helpers

constexpr float kTaken = -std::numeric_limits<float>::infinity();

using Scores = std::array<float, kMostExperts>;

void score_token(const RouterDesc& desc, const float* logits, Scores& scores) {
  if (desc.score == RouterScore::Sigmoid) {
    for (int64_t e = 0; e < desc.experts; ++e) {
      scores[static_cast<size_t>(e)] = 1.0f / (1.0f + std::exp(-logits[e]));
    }
    return;
  }
  const float top = *std::max_element(logits, logits + desc.experts);
  float sum = 0.0f;
  for (int64_t e = 0; e < desc.experts; ++e) {
    scores[static_cast<size_t>(e)] = std::exp(logits[e] - top);
    sum += scores[static_cast<size_t>(e)];
  }
  for (int64_t e = 0; e < desc.experts; ++e) {
    scores[static_cast<size_t>(e)] /= sum;
  }
}

// Index of the largest of scores[begin, end); the lowest index among equals.
int64_t best_of(const Scores& scores, int64_t begin, int64_t end) {
  int64_t best = begin;
  for (int64_t e = begin + 1; e < end; ++e) {
    if (scores[static_cast<size_t>(e)] > scores[static_cast<size_t>(best)]) {
      best = e;
    }
  }
  return best;
}

// Takes the experts outside the best groups out of the choice.
void keep_best_groups(const RouterDesc& desc, bool two_best, Scores& choice) {
  const int64_t size = desc.experts / desc.groups;
  Scores group_score{};
  for (int64_t g = 0; g < desc.groups; ++g) {
    const int64_t best = best_of(choice, g * size, (g + 1) * size);
    group_score[static_cast<size_t>(g)] = choice[static_cast<size_t>(best)];
    if (two_best && size > 1) {
      float second = kTaken;
      for (int64_t e = g * size; e < (g + 1) * size; ++e) {
        if (e != best) {
          second = std::max(second, choice[static_cast<size_t>(e)]);
        }
      }
      group_score[static_cast<size_t>(g)] += second;
    }
  }
  std::array<bool, kMostExperts> kept{};
  for (int64_t i = 0; i < desc.topk_groups; ++i) {
    const int64_t best = best_of(group_score, 0, desc.groups);
    kept[static_cast<size_t>(best)] = true;
    group_score[static_cast<size_t>(best)] = kTaken;
  }
  for (int64_t e = 0; e < desc.experts; ++e) {
    if (!kept[static_cast<size_t>(e / size)]) {
      choice[static_cast<size_t>(e)] = kTaken;
    }
  }
}

void route_token(
    const RouterDesc& desc, const float* logits, const float* bias, int32_t* ids, float* weights) {
  // NaN compares false with everything, so no choice can be made: distinct experts, and weights
  // that carry the NaN to this token's logits, where the engine says so.
  if (std::any_of(logits, logits + desc.experts, [](float logit) { return std::isnan(logit); })) {
    for (int64_t j = 0; j < desc.topk; ++j) {
      ids[j] = static_cast<int32_t>(j);
      weights[j] = std::numeric_limits<float>::quiet_NaN();
    }
    return;
  }
  Scores scores{};
  score_token(desc, logits, scores);
  Scores choice = scores;
  if (bias != nullptr) {
    for (int64_t e = 0; e < desc.experts; ++e) {
      choice[static_cast<size_t>(e)] += bias[e];
    }
  }
  if (desc.groups > 1) {
    keep_best_groups(desc, bias != nullptr, choice);
  }
  float sum = 0.0f;
  for (int64_t j = 0; j < desc.topk; ++j) {
    const int64_t best = best_of(choice, 0, desc.experts);
    ids[j] = static_cast<int32_t>(best);
    weights[j] = scores[static_cast<size_t>(best)];
    sum += weights[j];
    choice[static_cast<size_t>(best)] = kTaken;
  }
  for (int64_t j = 0; j < desc.topk; ++j) {
    if (desc.normalize) {
      weights[j] /= sum;
    }
    weights[j] *= desc.scale;
  }
}

void route(const RouterDesc& desc,
           const Tensor& logits,
           const Tensor& bias,
           const Tensor& ids,
           const Tensor& weights,
           Stream stream) {
  CHECK(desc.experts <= kMostExperts && desc.topk <= desc.experts && desc.groups > 0 &&
            desc.experts % desc.groups == 0 && desc.topk_groups <= desc.groups,
        "a router of ",
        desc.experts,
        " experts in ",
        desc.groups,
        " groups does not fit");
  pool_of(stream).parallel_for(logits.shape[0], 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      route_token(desc,
                  logits.as<float>() + t * logits.stride[0],
                  bias.empty() ? nullptr : bias.as<float>(),
                  ids.as<int32_t>() + t * ids.stride[0],
                  weights.as<float>() + t * weights.stride[0]);
    }
  });
}

}  // namespace

extern const RouterBackend kCpuRouter;
const RouterBackend kCpuRouter{.device = Device::Kind::Cpu, .route = route};

}  // namespace nibble
