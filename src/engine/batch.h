// What one step computes: tokens [begin, begin + count) of each sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/sequence.h"

namespace nibble::engine {

struct Slice {
  Sequence* sequence = nullptr;  // nullptr: it ended after the batch was made
  int64_t begin = 0;
  int64_t count = 0;
  bool samples = false;  // its last token is the sequence's last: the next one is wanted
};

struct Batch {
  bool decode = false;  // generated tokens, one a sequence; else prompt tokens
  std::vector<Slice> slices;
  int64_t num_tokens() const {
    int64_t sum = 0;
    for (const Slice& slice : slices) {
      sum += slice.count;
    }
    return sum;
  }
};

}  // namespace nibble::engine
