// From one row of logits to a token and its logprobs, on the host. Everything is a function of the
// row, the request and the position: random numbers come from (seed, position), sums run in one
// order, ties go to the lower token id. Functions may run on several threads, one row each.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/sequence.h"
#include "ops/kernels.h"

namespace nibble::engine {

struct Sampled {
  std::optional<int32_t> token;  // nullopt: the logits were not finite
  PositionLogprobs logprobs;     // when asked for
};

// logits: [vocab] f32. allowed: one bit a token from the request's mask; empty: all. stop_ids: the
// tokens that min_new_tokens holds back. Penalties read sequence.tokens and generated_counts.
Sampled sample(std::span<const float> logits,
               const Sequence& sequence,
               std::span<const uint32_t> allowed,
               std::span<const int32_t> stop_ids);

// What a device has to draw so that the answer is that of sample(); nullopt when only the host can:
// penalties, biases, masks, tokens held back, alternatives to report.
// under_way: tokens before it that the host does not know yet.
std::optional<DrawRequest> draw_request(const Sequence& sequence, int64_t under_way = 0);
// nullopt: the candidates do not decide, the whole row is needed. vocab_size: of the row.
std::optional<Sampled> sampled_from(const DrawRequest& request,
                                    const DrawResult& drawn,
                                    std::span<const DrawCandidate> candidates,
                                    int64_t vocab_size,
                                    const Sequence& sequence);

// To be called with each token that was sampled.
void remember(Sequence& sequence, int32_t token);

// What the logits of position i say about token i + 1 of a prompt: unscaled log softmax.
PositionLogprobs prompt_logprobs(std::span<const float> logits,
                                 int32_t token,
                                 const LogprobOptions& options);

}  // namespace nibble::engine
