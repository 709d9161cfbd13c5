#include "quantize/attention_statistics.h"

#include <algorithm>

#include "base/check.h"
#include "base/number_formats.h"

namespace nibble::quantize {

namespace {

// Rows [begin, begin + count) of one head of a strided [tokens, heads, head_dim], as
// [head_dim][stride] f32.
void transpose_head(
    const Tensor& heads, int64_t head, int64_t begin, int64_t count, int64_t stride, float* out) {
  const int64_t dim = heads.shape[2];
  for (int64_t t = 0; t < count; ++t) {
    const uint16_t* row =
        heads.as<uint16_t>() + (begin + t) * heads.stride[0] + head * heads.stride[1];
    for (int64_t d = 0; d < dim; ++d) {
      out[d * stride + t] = bf16_to_float(row[d]);
    }
  }
}

// x as panels [hidden / kLanes][tokens][kLanes].
AlignedFloats panels_of(const Tensor& x, LargeBlocks* blocks) {
  const int64_t tokens = x.shape[0];
  const int64_t width = x.shape[1];
  const int64_t panels = (width + kLanes - 1) / kLanes;
  AlignedFloats out(static_cast<size_t>(panels * tokens * kLanes), 0.0f, blocks);
  for (int64_t t = 0; t < tokens; ++t) {
    const uint16_t* row = x.as<uint16_t>() + t * x.stride[0];
    for (int64_t i = 0; i < width; ++i) {
      out[static_cast<size_t>((i / kLanes * tokens + t) * kLanes + i % kLanes)] =
          bf16_to_float(row[i]);
    }
  }
  return out;
}

}  // namespace

void add_value_statistics(const AttentionDesc& desc,
                          const Tensor& q,
                          const Tensor& k,
                          const Tensor& x,
                          const Compute& compute,
                          std::vector<StatisticsCollector>& heads) {
  const int64_t tokens = x.shape[0];
  CHECK(tokens % kLanes == 0, "tokens must be whole panels, got ", tokens);
  const int64_t steps = tokens / kLanes;
  const int64_t stride = tokens + kPanelBlock;  // odd number of cache lines
  const int64_t panels = (x.shape[1] + kLanes - 1) / kLanes;
  const AlignedFloats input = panels_of(x, compute.blocks);
  AlignedFloats keys(static_cast<size_t>(desc.head_dim * stride));
  AlignedFloats weights(static_cast<size_t>(tokens * stride), compute.blocks);  // A^T: [key][query]
  AlignedFloats mixed(input.size(), compute.blocks);
  const int64_t shared = desc.heads / desc.kv_heads;
  for (int64_t kv_head = 0; kv_head < desc.kv_heads; ++kv_head) {
    StatisticsCollector& statistics = heads[static_cast<size_t>(kv_head)];
    const int64_t rotation = statistics.tokens() / tokens;
    transpose_head(k, kv_head, 0, tokens, stride, keys.data());
    std::fill(weights.begin(), weights.end(), 0.0f);
    compute.pool.parallel_for(steps, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
      AlignedFloats queries(static_cast<size_t>(desc.head_dim * kLanes));
      for (int64_t step = begin; step < end; ++step) {
        const int64_t head = kv_head * shared + (step + rotation) % shared;
        transpose_head(q, head, step * kLanes, kLanes, kLanes, queries.data());
        const int64_t seen = (step + 1) * kLanes;
        float* out = weights.data() + step * kLanes;
        const ProductTask scores{.panels = 1,
                                 .rows = seen,
                                 .depth = desc.head_dim,
                                 .a = keys.data(),
                                 .a_stride = stride,
                                 .b = queries.data(),
                                 .b_panel = 0,
                                 .c = out,
                                 .c_panel = 0,
                                 .c_stride = stride};
        compute.kernels.accumulate(&scores);
        compute.kernels.softmax(seen, step * kLanes, desc.scale, out, stride);
      }
    });
    std::fill(mixed.begin(), mixed.end(), 0.0f);
    compute.pool.parallel_for(panels, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
      for (int64_t panel = begin; panel < end; ++panel) {
        for (int64_t step = 0; step < steps; ++step) {
          const ProductTask mix{.panels = 1,
                                .rows = kLanes,
                                .depth = (step + 1) * kLanes,
                                .a = weights.data() + step * kLanes,
                                .a_stride = stride,
                                .b = input.data() + panel * tokens * kLanes,
                                .b_panel = 0,
                                .c = mixed.data() + (panel * tokens + step * kLanes) * kLanes,
                                .c_panel = 0,
                                .c_stride = kLanes};
          compute.kernels.accumulate(&mix);
        }
      }
    });
    statistics.add_panels(mixed.data(), tokens, compute);
  }
}

}  // namespace nibble::quantize
