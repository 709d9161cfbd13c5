// cpu_reference attention: scalar, one (row, head) at a time, KV in ascending order. The oracle of
// the SIMD kernels and the backend of CPUs without AVX2. A row reads its own KV only, so chunking
// and batch mix cannot change it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/gemm_shared.h"
#include "base/check.h"
#include "base/number_formats.h"
#include "ops/attention.h"

namespace nibble {

namespace {

using namespace nibble::cpu;  // NOLINT(google-build-using-namespace): the folder's own helpers

// The largest head_dim whose accumulator lives on the stack.
constexpr int64_t kMaxHeadDim = 1024;

Support supports(const AttentionDesc& desc) {
  if (desc.device != Device::Kind::Cpu) {
    return {false, "runs on the cpu only"};
  }
  if (desc.head_dim > kMaxHeadDim) {
    return {false, "head_dim is above 1024"};
  }
  if (desc.kv_heads <= 0 || desc.heads <= 0 || desc.heads % desc.kv_heads != 0 ||
      desc.head_dim <= 0) {
    return {false, "heads must be a multiple of kv_heads"};
  }
  return {true, {}};
}

size_t workspace_bytes(const AttentionDesc& /*desc*/, int64_t /*max_tokens*/, int64_t /*seqs*/) {
  return 0;
}

int64_t place_of(const Tensor& cache, const int32_t* pages, int64_t position, int64_t head) {
  const int64_t page_size = cache.shape[1];
  return pages[position / page_size] * cache.stride[0] + position % page_size * cache.stride[1] +
         head * cache.stride[2];
}

float value_at(const Tensor& cache, int64_t place) {
  return cache.dtype == DType::E4M3 ? e4m3_to_float(static_cast<const uint8_t*>(cache.data)[place])
                                    : bf16_to_float(cache.as<uint16_t>()[place]);
}

float scale_of(const AttentionDesc& desc, const Tensor& scale) {
  return desc.kv == DType::E4M3 ? *scale.as<float>() : 1.0f;
}

// Online softmax: the running maximum rescales what was summed before.
void attend(const AttentionDesc& desc,
            const AttentionArgs& args,
            const int32_t* pages,
            int64_t kv_count,
            int64_t head,
            const uint16_t* q,
            uint16_t* out) {
  float acc[kMaxHeadDim] = {};
  float top = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
  const float scale = desc.scale * scale_of(desc, args.k_scale);
  const float v_scale = scale_of(desc, args.v_scale);
  const int64_t kv_head = head / (desc.heads / desc.kv_heads);
  for (int64_t position = 0; position < kv_count; ++position) {
    const int64_t k = place_of(args.k_cache, pages, position, kv_head);
    const int64_t v = place_of(args.v_cache, pages, position, kv_head);
    float score = 0.0f;
    for (int64_t i = 0; i < desc.head_dim; ++i) {
      score += bf16_to_float(q[i]) * value_at(args.k_cache, k + i);
    }
    score *= scale;
    if (score > top) {
      const float shrink = std::exp(top - score);
      sum *= shrink;
      for (int64_t i = 0; i < desc.head_dim; ++i) {
        acc[i] *= shrink;
      }
      top = score;
    }
    const float weight = std::exp(score - top);
    sum += weight;
    for (int64_t i = 0; i < desc.head_dim; ++i) {
      acc[i] += weight * value_at(args.v_cache, v + i);
    }
  }
  for (int64_t i = 0; i < desc.head_dim; ++i) {
    out[i] = float_to_bf16(acc[i] / sum * v_scale);
  }
}

void run(const AttentionDesc& desc, const AttentionArgs& args, Stream stream) {
  const int64_t seqs = args.kv_lens.shape[0];
  const int32_t* q_begin = args.q_begin.as<int32_t>();
  const int32_t* kv_lens = args.kv_lens.as<int32_t>();
  const int64_t tokens = q_begin[seqs];
  pool_of(stream).parallel_for(tokens * desc.heads, 1, [&](int64_t begin, int64_t end, int) {
    int64_t seq = 0;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t token = unit / desc.heads;
      const int64_t head = unit % desc.heads;
      while (token >= q_begin[seq + 1]) {
        ++seq;
      }
      const int64_t position = kv_lens[seq] - (q_begin[seq + 1] - token);
      const int32_t* pages = args.page_table.as<int32_t>() + seq * args.page_table.stride[0];
      attend(desc,
             args,
             pages,
             position + 1,
             head,
             args.q.as<uint16_t>() + token * args.q.stride[0] + head * args.q.stride[1],
             args.out.as<uint16_t>() + token * args.out.stride[0] + head * args.out.stride[1]);
    }
  });
}

}  // namespace

extern const AttentionBackend kCpuReferenceAttention;
const AttentionBackend kCpuReferenceAttention{
    .name = "cpu_reference",
    .family = "reference",
    .supports = supports,
    .workspace_bytes = workspace_bytes,
    .run = run,
};

}  // namespace nibble
