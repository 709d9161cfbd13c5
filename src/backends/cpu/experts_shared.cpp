#include "backends/cpu/experts_shared.h"

#include <algorithm>

#include "backends/cpu/gemm_shared.h"
#include "backends/cpu/small_rows.h"
#include "backends/cpu/weighted_sum.h"
#include "base/check.h"

namespace nibble::cpu {

Support check_experts(const ExpertsDesc& desc, CpuIsa needed) {
  if (desc.experts <= 0 || desc.topk <= 0 || desc.topk > desc.experts || desc.hidden <= 0 ||
      desc.ffn <= 0) {
    return {false, "experts, topk, hidden and ffn must be positive and topk at most experts"};
  }
  if (desc.experts > kMostExperts || desc.topk > kMostExpertsPerToken) {
    return {false,
            "takes up to " + std::to_string(kMostExperts) + " experts and " +
                std::to_string(kMostExpertsPerToken) + " a token"};
  }
  const Support first = check_desc(first_desc(desc), needed);
  return first.ok ? check_desc(second_desc(desc), needed) : first;
}

GemmDesc first_desc(const ExpertsDesc& desc) {
  GemmDesc gemm;
  gemm.device = desc.device;
  gemm.isa = desc.isa;
  gemm.mode = desc.mode;
  gemm.k = desc.hidden;
  gemm.num_parts = desc.activation == ExpertActivation::SwiGlu ? 2 : 1;
  gemm.n = gemm.num_parts * desc.ffn;
  for (int part = 0; part < gemm.num_parts; ++part) {
    gemm.part_rows[static_cast<size_t>(part)] = desc.ffn;
  }
  gemm.pre_quant_scale = desc.pre_quant_scale;
  gemm.static_input_scale = desc.static_input_scale;
  return gemm;
}

GemmDesc second_desc(const ExpertsDesc& desc) {
  GemmDesc gemm = first_desc(desc);
  gemm.out = DType::F32;
  gemm.k = desc.ffn;
  gemm.num_parts = 1;
  gemm.n = desc.hidden;
  gemm.part_rows = {desc.hidden, 0, 0, 0};
  return gemm;
}

void sort_pairs(const ExpertsDesc& desc, const Tensor& ids, const PairOrder& order) {
  const int64_t tokens = ids.shape[0];
  const auto id_of = [&](int64_t t, int64_t j) {
    const int32_t id = ids.as<int32_t>()[t * ids.stride[0] + j];
    CHECK(id >= 0 && id < desc.experts, "expert id out of range: ", id);
    return id;
  };
  std::fill(order.begin, order.begin + desc.experts + 1, 0);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < desc.topk; ++j) {
      ++order.begin[id_of(t, j) + 1];
    }
  }
  for (int64_t e = 0; e < desc.experts; ++e) {
    order.begin[e + 1] += order.begin[e];
  }
  // begin[e] walks to begin[e + 1] while places are given out, then everything moves back by one.
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < desc.topk; ++j) {
      const int32_t place = order.begin[id_of(t, j)]++;
      order.token[place] = static_cast<int32_t>(t);
      order.place[t * desc.topk + j] = place;
    }
  }
  for (int64_t e = desc.experts; e > 0; --e) {
    order.begin[e] = order.begin[e - 1];
  }
  order.begin[0] = 0;
}

void activate_row(const ExpertsDesc& desc, const uint16_t* first, uint16_t* out) {
  if (desc.activation == ExpertActivation::SwiGlu) {
    small_rows(desc.isa).silu_mul(first, first + desc.ffn, desc.ffn, out);
  } else {
    relu2_row(first, desc.ffn, out);
  }
}

void combine_row(const ExpertsDesc& desc,
                 const float* weights,
                 const int32_t* places,
                 const float* out,
                 int64_t column_begin,
                 int64_t column_end,
                 uint16_t* y) {
  const auto sum =
      desc.isa >= static_cast<int>(CpuIsa::Avx2) ? weighted_sum_avx2 : weighted_sum_scalar;
  sum(weights, places, desc.topk, out, desc.hidden, column_begin, column_end, y);
}

}  // namespace nibble::cpu
