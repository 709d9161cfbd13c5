// A random paged-attention problem over several sequences, with a float64 answer.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/attention.h"

namespace nibble::test {

// One step: sequence s feeds `rows[s]` query rows that end at KV length `kv_lens[s]`.
struct AttentionProblem {
  AttentionDesc desc;
  std::vector<int64_t> rows;
  std::vector<int64_t> kv_lens;
  std::vector<uint16_t> q;  // [sum of kv_lens, heads, head_dim]: a query for every position
  // [pages, page_size, kv_heads, head_dim]: bf16, or what e4m3 codes times their scale are.
  std::vector<uint16_t> k, v;
  std::vector<uint8_t> k_codes, v_codes;  // with desc.kv E4M3: what is stored
  float k_scale = 0.25f, v_scale = 2.0f;  // powers of two: products with codes are bf16
  std::vector<int32_t> page_table;        // [seqs, max_pages], pages shuffled
  int64_t max_pages = 0;

  // Answer of the query at `position` of sequence `seq`: [heads, head_dim].
  std::vector<double> expected(int64_t seq, int64_t position) const;
  // Runs the rows that this step feeds: [sum of rows, heads, head_dim].
  std::vector<uint16_t> run(const AttentionBackend& backend, Stream stream) const;
};

AttentionProblem make_attention_problem(const AttentionDesc& desc,
                                        std::vector<int64_t> kv_lens,
                                        uint64_t seed);

}  // namespace nibble::test
