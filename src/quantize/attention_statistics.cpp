#include "quantize/attention_statistics.h"

#include <algorithm>

#include "base/check.h"
#include "base/number_formats.h"

namespace nibble::quantize {

namespace {

// One head of a strided [tokens, heads, head_dim] as [head_dim][stride] f32.
void transpose_head(const Tensor& heads, int64_t head, int64_t stride, std::vector<float>& out) {
  const int64_t tokens = heads.shape[0];
  const int64_t dim = heads.shape[2];
  out.assign(static_cast<size_t>(dim * stride), 0.0f);
  for (int64_t t = 0; t < tokens; ++t) {
    const uint16_t* row = heads.as<uint16_t>() + t * heads.stride[0] + head * heads.stride[1];
    for (int64_t d = 0; d < dim; ++d) {
      out[static_cast<size_t>(d * stride + t)] = bf16_to_float(row[d]);
    }
  }
}

// x as panels [hidden / kLanes][tokens][kLanes].
std::vector<float> panels_of(const Tensor& x) {
  const int64_t tokens = x.shape[0];
  const int64_t width = x.shape[1];
  const int64_t panels = (width + kLanes - 1) / kLanes;
  std::vector<float> out(static_cast<size_t>(panels * tokens * kLanes), 0.0f);
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
  const std::vector<float> input = panels_of(x);
  std::vector<float> keys;
  std::vector<float> queries;
  std::vector<float> weights(static_cast<size_t>(tokens * stride));  // A^T: [key][query]
  std::vector<float> mixed(input.size());
  const int64_t shared = desc.heads / desc.kv_heads;
  for (int64_t head = 0; head < desc.heads; ++head) {
    if (head % shared == 0) {
      transpose_head(k, head / shared, stride, keys);
    }
    transpose_head(q, head, stride, queries);
    std::fill(weights.begin(), weights.end(), 0.0f);
    compute.pool.parallel_for(steps, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
      for (int64_t step = begin; step < end; ++step) {
        const int64_t seen = (step + 1) * kLanes;
        float* out = weights.data() + step * kLanes;
        compute.kernels.accumulate(seen,
                                   desc.head_dim,
                                   keys.data(),
                                   stride,
                                   queries.data() + step * kLanes,
                                   stride,
                                   out,
                                   stride);
        compute.kernels.softmax(seen, step * kLanes, desc.scale, out, stride);
      }
    });
    std::fill(mixed.begin(), mixed.end(), 0.0f);
    compute.pool.parallel_for(panels, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
      for (int64_t panel = begin; panel < end; ++panel) {
        for (int64_t step = 0; step < steps; ++step) {
          compute.kernels.accumulate(kLanes,
                                     (step + 1) * kLanes,
                                     weights.data() + step * kLanes,
                                     stride,
                                     input.data() + panel * tokens * kLanes,
                                     kLanes,
                                     mixed.data() + (panel * tokens + step * kLanes) * kLanes,
                                     kLanes);
        }
      }
    });
    heads[static_cast<size_t>(head / shared)].add_panels(mixed.data(), tokens, compute);
  }
}

}  // namespace nibble::quantize
