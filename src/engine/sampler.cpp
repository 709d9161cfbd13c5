#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/random.h"

namespace nibble::engine {

namespace {

constexpr float kGreedyBelow = 1e-6f;  // temperatures under this are greedy, as upstream
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

bool is_greedy(const SamplingParams& sampling) {
  return sampling.temperature < kGreedyBelow || sampling.top_k == 1;
}

bool has_penalty(const SamplingParams& s) {
  return s.frequency_penalty != 0.0f || s.presence_penalty != 0.0f || s.repetition_penalty != 1.0f;
}

// Index of the largest value, the lowest index among equals; -1 when a NaN or +infinity is there or
// nothing is left. In lanes, so that the compiler makes vectors of them: in a decode step the other
// threads wait for this.
int64_t argmax(std::span<const float> values) {
  constexpr size_t kLanes = 16;
  constexpr size_t kBlock = 64 * kLanes;
  std::array<uint32_t, kLanes> bad{};
  size_t best_block = 0;
  float largest = kMinusInfinity;
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::span<const float> block =
        values.subspan(begin, std::min(kBlock, values.size() - begin));
    std::array<float, kLanes> top;
    top.fill(kMinusInfinity);
    const size_t whole = block.size() / kLanes * kLanes;
    for (size_t i = 0; i < whole; i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const float value = block[i + lane];
        top[lane] = value > top[lane] ? value : top[lane];
        bad[lane] |= static_cast<uint32_t>(std::isnan(value));
      }
    }
    for (size_t i = whole; i < block.size(); ++i) {
      top[0] = block[i] > top[0] ? block[i] : top[0];
      bad[0] |= static_cast<uint32_t>(std::isnan(block[i]));
    }
    const float top_of_block = *std::max_element(top.begin(), top.end());
    if (top_of_block > largest) {
      largest = top_of_block;
      best_block = begin;
    }
  }
  const bool any_bad = std::any_of(bad.begin(), bad.end(), [](uint32_t lane) { return lane != 0; });
  if (any_bad || std::isinf(largest)) {
    return -1;
  }
  const auto found =
      std::find(values.begin() + static_cast<std::ptrdiff_t>(best_block), values.end(), largest);
  return found - values.begin();
}

// log(sum(exp(values * scale))) with one order of summation.
double log_sum_exp(std::span<const float> values, double scale) {
  const float largest = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (const float value : values) {
    sum += static_cast<double>(
        std::exp(static_cast<float>(static_cast<double>(value - largest) * scale)));
  }
  return static_cast<double>(largest) * scale + std::log(sum);
}

struct Adjusted {
  std::vector<float> storage;
  std::span<const float> logits;
};

void apply_penalties(std::vector<float>& logits, const Sequence& sequence) {
  const SamplingParams& s = sequence.request.sampling;
  if (s.repetition_penalty != 1.0f) {  // Keskar et al. 2019: prompt and generated tokens alike
    std::vector<bool> seen(logits.size(), false);
    for (const int32_t token : sequence.tokens) {
      if (!seen[static_cast<size_t>(token)]) {
        seen[static_cast<size_t>(token)] = true;
        float& logit = logits[static_cast<size_t>(token)];
        const float scaled =
            logit > 0 ? logit / s.repetition_penalty : logit * s.repetition_penalty;
        // An infinity would say that the model is broken, not that the penalty is tiny.
        logit =
            std::isinf(scaled) && std::isfinite(logit) ? std::copysign(kLargest, scaled) : scaled;
      }
    }
  }
  for (const auto& [token, count] : sequence.generated_counts) {
    logits[static_cast<size_t>(token)] -=
        s.presence_penalty + s.frequency_penalty * static_cast<float>(count);
  }
}

Adjusted adjust(std::span<const float> logits,
                const Sequence& sequence,
                std::span<const uint32_t> allowed,
                std::span<const int32_t> stop_ids) {
  const SamplingParams& s = sequence.request.sampling;
  const bool holds_back = sequence.num_generated() < s.min_new_tokens;
  Adjusted adjusted;
  adjusted.logits = logits;
  if (!has_penalty(s) && s.logit_bias.empty() && allowed.empty() && !holds_back) {
    return adjusted;
  }
  adjusted.storage.assign(logits.begin(), logits.end());
  std::vector<float>& values = adjusted.storage;
  apply_penalties(values, sequence);
  for (const auto& [token, bias] : s.logit_bias) {
    values[static_cast<size_t>(token)] += bias;
  }
  if (holds_back) {
    for (const std::span<const int32_t> ids : {stop_ids, std::span(s.stop_token_ids)}) {
      for (const int32_t token : ids) {
        if (token >= 0 && static_cast<size_t>(token) < values.size()) {
          values[static_cast<size_t>(token)] = kMinusInfinity;
        }
      }
    }
  }
  for (size_t i = 0; !allowed.empty() && i < values.size(); ++i) {
    if (((allowed[i / 32] >> (i % 32)) & 1u) == 0) {
      values[i] = kMinusInfinity;
    }
  }
  adjusted.logits = values;
  return adjusted;
}

bool has_filter(const SamplingParams& s) { return s.top_k > 0 || s.top_p < 1.0f || s.min_p > 0.0f; }

bool is_better(const DrawCandidate& a, const DrawCandidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// Inverse of the cumulative distribution over what top_k, top_p and min_p leave of `sorted`, the
// best first. All three look at the probabilities after temperature; the rest is renormalised by
// drawing within its sum. nullopt: they may leave more than `sorted`, which is not all.
std::optional<int32_t> draw_filtered(std::span<const DrawCandidate> sorted,
                                     bool is_all,
                                     const SamplingParams& s,
                                     double unit,
                                     double log_total) {
  const double scale = 1.0 / static_cast<double>(s.temperature);
  const auto probability = [&](const DrawCandidate& candidate) {
    return std::exp(static_cast<double>(candidate.logit) * scale - log_total);
  };
  const size_t most =
      s.top_k > 0 ? std::min(sorted.size(), static_cast<size_t>(s.top_k)) : sorted.size();
  const double floor = probability(sorted[0]) * static_cast<double>(s.min_p);
  std::vector<double> cumulative;
  double sum = 0;
  bool ended = is_all || (s.top_k > 0 && static_cast<size_t>(s.top_k) <= sorted.size());
  for (size_t i = 0; i < most; ++i) {
    const double p = probability(sorted[i]);
    if (i > 0 && (sum >= static_cast<double>(s.top_p) || p < floor || p == 0.0)) {
      ended = true;
      break;
    }
    sum += p;
    cumulative.push_back(sum);
  }
  if (!ended) {
    return std::nullopt;
  }
  const double target = unit * sum;
  const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), target);
  const size_t index =
      std::min(static_cast<size_t>(found - cumulative.begin()), cumulative.size() - 1);
  return sorted[index].token;
}

// The same over all tokens without filters, in their order; else over a growing sorted head: nearly
// always the kept set is small.
int32_t draw(std::span<const float> logits, const Sequence& sequence, double log_total) {
  const SamplingParams& s = sequence.request.sampling;
  const double unit = random_unit(s.seed, static_cast<uint64_t>(sequence.num_generated()));
  if (!has_filter(s)) {
    const double scale = 1.0 / static_cast<double>(s.temperature);
    double sum = 0;
    int32_t last = 0;
    for (int32_t token = 0; token < static_cast<int32_t>(logits.size()); ++token) {
      const float logit = logits[static_cast<size_t>(token)];
      if (logit == kMinusInfinity) {
        continue;
      }
      sum += std::exp(static_cast<double>(logit) * scale - log_total);
      last = token;
      if (unit < sum) {
        return token;
      }
    }
    return last;  // the sum fell short of 1 by rounding
  }
  std::vector<DrawCandidate> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = {logits[i], static_cast<int32_t>(i)};
  }
  for (size_t count = kDrawCandidates;; count *= 8) {
    const size_t sorted = std::min(count, order.size());
    std::partial_sort(
        order.begin(), order.begin() + static_cast<std::ptrdiff_t>(sorted), order.end(), is_better);
    const auto token =
        draw_filtered(std::span(order).first(sorted), sorted == order.size(), s, unit, log_total);
    if (token) {
      return *token;
    }
  }
}

PositionLogprobs describe(std::span<const float> logits,
                          double scale,
                          double log_total,
                          std::optional<int32_t> token,
                          const LogprobOptions& options) {
  const auto logprob = [&](int32_t id) {
    return TokenLogprob{
        static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) * scale -
                           log_total),
        id};
  };
  PositionLogprobs out;
  if (token) {
    out.token = logprob(*token);
  }
  if (options.top > 0) {
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    const auto count = std::min<size_t>(static_cast<size_t>(options.top), order.size());
    std::partial_sort(order.begin(),
                      order.begin() + static_cast<std::ptrdiff_t>(count),
                      order.end(),
                      [&](int32_t a, int32_t b) {
                        const float x = logits[static_cast<size_t>(a)];
                        const float y = logits[static_cast<size_t>(b)];
                        return x != y ? x > y : a < b;
                      });
    for (size_t i = 0; i < count; ++i) {
      out.top.push_back(logprob(order[i]));
    }
  }
  for (const int32_t id : options.token_ids) {
    out.chosen.push_back(logprob(id));
  }
  return out;
}

}  // namespace

Sampled sample(std::span<const float> logits,
               const Sequence& sequence,
               std::span<const uint32_t> allowed,
               std::span<const int32_t> stop_ids) {
  const SamplingParams& sampling = sequence.request.sampling;
  const Adjusted adjusted = adjust(logits, sequence, allowed, stop_ids);
  const bool greedy = is_greedy(sampling);
  const bool wants_logprobs = sequence.request.logprobs.output;
  Sampled sampled;
  const int64_t best = argmax(adjusted.logits);
  if (best < 0) {
    return sampled;
  }
  // Greedy rows report the softmax of the logits, sampled rows that of logits / temperature; the
  // filters never show, as upstream.
  const bool scaled = sampling.temperature >= kGreedyBelow && !greedy;
  const double scale = scaled ? 1.0 / static_cast<double>(sampling.temperature) : 1.0;
  const double log_total = greedy && !wants_logprobs ? 0.0 : log_sum_exp(adjusted.logits, scale);
  sampled.token = greedy ? static_cast<int32_t>(best) : draw(adjusted.logits, sequence, log_total);
  if (wants_logprobs) {
    sampled.logprobs =
        describe(adjusted.logits, scale, log_total, sampled.token, sequence.request.logprobs);
  }
  return sampled;
}

std::optional<DrawRequest> draw_request(const Sequence& sequence, int64_t under_way) {
  const int64_t generated = sequence.num_generated() + under_way;
  const SamplingParams& s = sequence.request.sampling;
  const LogprobOptions& logprobs = sequence.request.logprobs;
  const bool greedy = is_greedy(s);
  const bool changes_logits = has_penalty(s) || !s.logit_bias.empty() ||
                              sequence.request.mask != nullptr || generated < s.min_new_tokens;
  const bool alternatives = logprobs.output && (logprobs.top > 0 || !logprobs.token_ids.empty());
  if (changes_logits || alternatives) {
    return std::nullopt;
  }
  DrawRequest request;
  if (!greedy) {
    request.greedy = 0;
    request.scale = 1.0 / static_cast<double>(s.temperature);
    request.unit = random_unit(s.seed, static_cast<uint64_t>(generated));
    request.candidates = has_filter(s) ? 1 : 0;
  }
  return request;
}

std::optional<Sampled> sampled_from(const DrawRequest& request,
                                    const DrawResult& drawn,
                                    std::span<const DrawCandidate> candidates,
                                    int64_t vocab_size,
                                    const Sequence& sequence) {
  Sampled sampled;
  if (drawn.token < 0) {
    return sampled;
  }
  DrawCandidate chosen{drawn.logit, drawn.token};
  if (request.candidates != 0) {
    std::vector<DrawCandidate> sorted(candidates.begin(), candidates.end());
    std::sort(sorted.begin(), sorted.end(), is_better);
    const auto token = draw_filtered(sorted,
                                     static_cast<int64_t>(sorted.size()) == vocab_size,
                                     sequence.request.sampling,
                                     request.unit,
                                     drawn.log_total);
    if (!token) {
      return std::nullopt;
    }
    chosen = *std::find_if(sorted.begin(), sorted.end(), [&](const DrawCandidate& candidate) {
      return candidate.token == *token;
    });
  }
  sampled.token = chosen.token;
  if (sequence.request.logprobs.output) {
    const double logprob = static_cast<double>(chosen.logit) * request.scale - drawn.log_total;
    sampled.logprobs.token = TokenLogprob{static_cast<float>(logprob), chosen.token};
  }
  return sampled;
}

void remember(Sequence& sequence, int32_t token) {
  const SamplingParams& s = sequence.request.sampling;
  if (s.frequency_penalty != 0.0f || s.presence_penalty != 0.0f) {
    ++sequence.generated_counts[token];
  }
}

PositionLogprobs prompt_logprobs(std::span<const float> logits,
                                 int32_t token,
                                 const LogprobOptions& options) {
  return describe(logits, 1.0, log_sum_exp(logits, 1.0), token, options);
}

}  // namespace nibble::engine
