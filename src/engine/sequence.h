// A request while it lives in the engine: its tokens, its pages and what the sampler remembers.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/prefix_cache.h"
#include "engine/request.h"

namespace nibble::engine {

struct Sequence {
  Request request;              // its prompt moved to the front of `tokens`
  std::vector<int32_t> tokens;  // prompt, then what was generated
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;  // prompt + generated may not exceed this
  int64_t computed = 0;    // leading tokens whose keys and values are in the pages

  // ---- pages: the first shared_pages belong to the prefix cache ----
  std::vector<int32_t> pages;
  PrefixCache::Node* node = nullptr;  // locked path of the shared pages
  size_t shared_pages = 0;
  uint64_t weights_serial = 0;  // of the weights that computed the pages

  // ---- reported ----
  int64_t cached_tokens = -1;  // of the first admission
  int64_t num_retractions = 0;
  std::vector<PositionLogprobs> prompt_logprobs;
  bool prompt_logprobs_done = false;  // delivered, or never asked for

  // ---- sampler ----
  std::unordered_map<int32_t, int32_t> generated_counts;  // when a penalty needs them

  RequestId id() const { return request.id; }
  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_generated() const { return num_tokens() - prompt_tokens; }
  // First prompt position whose logits are still wanted; -1: none.
  int64_t first_logit_position() const {
    if (prompt_logprobs_done || request.logprobs.prompt_start < 0) {
      return -1;
    }
    return request.logprobs.prompt_start > 0 ? request.logprobs.prompt_start - 1 : 0;
  }
};

}  // namespace nibble::engine
