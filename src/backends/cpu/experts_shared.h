// What the CPU experts backends share: the GEMM descs of an expert and the grouping of tokens.
#pragma once

#include <cstdint>

#include "base/cpu_info.h"
#include "ops/experts.h"

namespace nibble::cpu {

// What the buffers of the router and of the scalar oracle hold; check_experts() refuses more.
inline constexpr int64_t kMostExperts = 1024;
inline constexpr int64_t kMostExpertsPerToken = 64;

Support check_experts(const ExpertsDesc& desc, CpuIsa needed);

// [gate; up] (two parts) or up alone: n = 2 * ffn or ffn, k = hidden, bf16 out.
GemmDesc first_desc(const ExpertsDesc& desc);
// down: n = hidden, k = ffn, f32 out.
GemmDesc second_desc(const ExpertsDesc& desc);

// (token, j) pairs sorted by expert, stable, so that an expert's rows are contiguous.
struct PairOrder {
  int32_t* begin;  // [experts + 1] first sorted place of each expert
  int32_t* token;  // [pairs] token of each sorted place
  int32_t* place;  // [pairs] sorted place of pair token * topk + j
};
void sort_pairs(const ExpertsDesc& desc, const Tensor& ids, const PairOrder& order);

// act of one row: first [n] bf16 -> out [ffn] bf16.
void activate_row(const ExpertsDesc& desc, const uint16_t* first, uint16_t* out);

// y[t, column_begin..column_end) = sum over j of weights[t, j] * out[place[t, j]], j ascending.
void combine_row(const ExpertsDesc& desc,
                 const float* weights,
                 const int32_t* places,
                 const float* out,
                 int64_t column_begin,
                 int64_t column_end,
                 uint16_t* y);

}  // namespace nibble::cpu
