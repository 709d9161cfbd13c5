// A random experts problem with a float64 answer (bf16 roundings of the hidden layer not modelled).
#pragma once

#include <cstdint>
#include <vector>

#include "ops/experts.h"
#include "support/gemm_problem.h"

namespace nibble::test {

struct ExpertsProblem {
  ExpertsDesc desc;
  std::vector<GemmProblem> gate, up, down;  // one each an expert: the weights
  std::vector<uint16_t> x;                  // [tokens, hidden]
  std::vector<int32_t> ids;                 // [tokens, topk], distinct in a token
  std::vector<float> weights;               // [tokens, topk]
  int64_t tokens = 0;

  std::vector<double> expected() const;  // w4a16 and bf16 only
  // Tokens [begin, end) through the backend: [end - begin, hidden] bf16.
  std::vector<uint16_t> run(const ExpertsBackend& backend,
                            Stream stream,
                            int64_t begin,
                            int64_t end) const;
};

ExpertsProblem make_experts_problem(const ExpertsDesc& desc, int64_t tokens, uint64_t seed);

}  // namespace nibble::test
