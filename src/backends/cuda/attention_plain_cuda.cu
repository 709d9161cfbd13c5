// attention_plain_cuda: causal attention over the paged cache for any head_dim up to 256, prefill
// and decode by one kernel. Plain on purpose: the oracle of the faster kernels on the device, and
// the kernel of head sizes that they decline.
//
// One block of four warps a (row, head). KV is walked in tiles of 32 positions from 0 on, tile t by
// warp t % 4: a lane computes one score, then every lane adds up its channels over the tile. The
// four partial softmaxes are joined in warp order at the end. So the bits of a row depend on its
// own position and KV only. A row outside every sequence, or of a sequence without KV, gets zeros.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/device/bf16_vector.cuh"
#include "backends/cuda/device/warp_sum.cuh"
#include "base/check.h"
#include "base/number_formats.h"
#include "ops/attention.h"

namespace nibble {
namespace {

using namespace nibble::cuda;  // NOLINT(google-build-using-namespace): the folder's own helpers

using Bf16 = __nv_bfloat16;

constexpr int kWarps = 4;
constexpr int kTile = 32;
constexpr int kMaxHeadDim = 256;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

struct Params {
  const Bf16* q;
  const void* k_cache;  // bf16 or e4m3
  const void* v_cache;
  const float* k_scale;  // of e4m3
  const float* v_scale;
  const int32_t* page_table;
  const int32_t* q_begin;
  const int32_t* kv_lens;
  Bf16* out;
  int64_t q_stride[2], k_stride[3], v_stride[3], out_stride[2], table_stride;
  int seqs, group, head_dim, page_size;
  float scale;
};

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, step));
  }
  return v;
}

// The sequence that row `row` belongs to, or seqs.
__device__ __forceinline__ int sequence_of(const Params& p, int row) {
  int low = 0;
  int high = p.seqs;
  while (low < high) {  // first sequence that ends behind the row
    const int middle = (low + high) / 2;
    if (p.q_begin[middle + 1] > row) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

__device__ __forceinline__ float to_float(Bf16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float to_float(uint8_t code) { return e4m3_to_float(code); }

template <bool kVector>
__device__ __forceinline__ void load_channels(const Bf16* row, int at, int width, float (&v)[8]) {
  load8<kVector>(row, at, width, v);
}
template <bool kVector>
__device__ __forceinline__ void load_channels(const uint8_t* row,
                                              int at,
                                              int width,
                                              float (&v)[8]) {
  uint2 codes = make_uint2(0, 0);
  if constexpr (kVector) {
    codes = *reinterpret_cast<const uint2*>(row + at);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t code = at + j < width ? row[at + j] : 0u;
      (j < 4 ? codes.x : codes.y) |= code << (j % 4 * 8);
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    v[j] = e4m3_to_float(static_cast<uint8_t>((j < 4 ? codes.x : codes.y) >> (j % 4 * 8)));
  }
}

// Cache: of what the KV cache is made. kDims: channels a lane adds up, head_dim <= 32 * kDims.
template <typename Cache, int kDims, bool kVector>
__global__ void __launch_bounds__(kWarps * 32, 4) attention_plain_kernel(const Params p) {
  __shared__ float q[kMaxHeadDim];
  __shared__ float partial[kWarps][kMaxHeadDim];
  __shared__ float tops[kWarps];
  __shared__ float sums[kWarps];
  const auto row = static_cast<int>(blockIdx.x);
  const auto head = static_cast<int>(blockIdx.y);
  const int kv_head = head / p.group;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x); i < kMaxHeadDim; i += kWarps * 32) {
    q[i] = i < p.head_dim ? __bfloat162float(p.q[row * p.q_stride[0] + head * p.q_stride[1] + i])
                          : 0.0f;
  }
  __syncthreads();
  const int seq = sequence_of(p, row);
  const int kv_count = seq < p.seqs ? max(p.kv_lens[seq] - (p.q_begin[seq + 1] - row) + 1, 0) : 0;
  const int32_t* pages = p.page_table + min(seq, p.seqs - 1) * p.table_stride;
  const auto* k_cache = static_cast<const Cache*>(p.k_cache);
  const auto* v_cache = static_cast<const Cache*>(p.v_cache);
  constexpr bool kScaled = sizeof(Cache) == 1;
  const float scale = kScaled ? p.scale * *p.k_scale : p.scale;
  const float v_scale = kScaled ? *p.v_scale : 1.0f;

  float acc[kDims] = {};
  float top = -INFINITY;
  float sum = 0.0f;
  for (int begin = warp * kTile; begin < kv_count; begin += kWarps * kTile) {
    const int position = begin + lane;
    const bool seen = position < kv_count;
    const int64_t page = seen ? pages[position / p.page_size] : 0;
    const int64_t place = position % p.page_size;
    float score = -INFINITY;
    if (seen) {
      const Cache* k =
          k_cache + page * p.k_stride[0] + place * p.k_stride[1] + kv_head * p.k_stride[2];
      score = 0.0f;
      for (int at = 0; at < p.head_dim; at += 8) {
        float v[8];
        load_channels<kVector>(k, at, p.head_dim, v);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          score += q[at + j] * v[j];
        }
      }
      score *= scale;
    }
    const float new_top = fmaxf(top, warp_max(score));
    const float shrink = expf(top - new_top);
    const float weight = seen ? expf(score - new_top) : 0.0f;
    sum = sum * shrink + warp_sum(weight);
    top = new_top;
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      acc[i] *= shrink;
    }
    const int64_t v_row = page * p.v_stride[0] + place * p.v_stride[1] + kv_head * p.v_stride[2];
    const int count = min(kTile, kv_count - begin);
    for (int j = 0; j < count; ++j) {
      const float w = __shfl_sync(kAllLanes, weight, j);
      const Cache* v = v_cache + __shfl_sync(kAllLanes, v_row, j);
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const int channel = lane + 32 * i;
        if (channel < p.head_dim) {
          acc[i] += w * to_float(v[channel]);
        }
      }
    }
  }

  if (lane == 0) {
    tops[warp] = top;
    sums[warp] = sum;
  }
#pragma unroll
  for (int i = 0; i < kDims; ++i) {
    partial[warp][lane + 32 * i] = acc[i];
  }
  __syncthreads();
  float all_top = tops[0];  // the first tile is warp 0's: finite unless there is no KV
#pragma unroll
  for (int w = 1; w < kWarps; ++w) {
    all_top = fmaxf(all_top, tops[w]);
  }
  for (int channel = static_cast<int>(threadIdx.x); channel < p.head_dim; channel += kWarps * 32) {
    float value = 0.0f;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float shrink = kv_count > 0 ? expf(tops[w] - all_top) : 0.0f;
      value += partial[w][channel] * shrink;
      total += sums[w] * shrink;
    }
    p.out[row * p.out_stride[0] + head * p.out_stride[1] + channel] =
        __float2bfloat16_rn(kv_count > 0 ? value / total * v_scale : 0.0f);
  }
}

Support supports(const AttentionDesc& desc) {
  if (desc.device != Device::Kind::Cuda) {
    return {false, "runs on CUDA only"};
  }
  if (desc.head_dim > kMaxHeadDim) {
    return {false, "head_dim is above 256"};
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

template <typename Cache, int kDims>
void launch_kind(const Params& p, int64_t rows, int64_t heads, bool vector, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(heads));
  if (vector) {
    attention_plain_kernel<Cache, kDims, true><<<grid, kWarps * 32, 0, stream>>>(p);
  } else {
    attention_plain_kernel<Cache, kDims, false><<<grid, kWarps * 32, 0, stream>>>(p);
  }
  CUDA_CHECK(cudaGetLastError());
}

template <int kDims>
void launch(const Params& p, int64_t rows, const AttentionDesc& desc, bool vector, cudaStream_t s) {
  if (desc.kv == DType::E4M3) {
    launch_kind<uint8_t, kDims>(p, rows, desc.heads, vector, s);
  } else {
    launch_kind<Bf16, kDims>(p, rows, desc.heads, vector, s);
  }
}

void run(const AttentionDesc& desc, const AttentionArgs& args, Stream stream) {
  const int64_t rows = args.q.shape[0];
  const auto data = [](const Tensor& t) { return reinterpret_cast<Bf16*>(t.as<uint16_t>()); };
  Params p{};
  p.q = data(args.q);
  CHECK(args.k_cache.dtype == desc.kv && args.v_cache.dtype == desc.kv, "type of the KV cache");
  p.k_cache = args.k_cache.data;
  p.v_cache = args.v_cache.data;
  if (desc.kv == DType::E4M3) {
    p.k_scale = args.k_scale.as<float>();
    p.v_scale = args.v_scale.as<float>();
  }
  p.page_table = args.page_table.as<int32_t>();
  p.q_begin = args.q_begin.as<int32_t>();
  p.kv_lens = args.kv_lens.as<int32_t>();
  p.out = data(args.out);
  for (int i = 0; i < 3; ++i) {
    p.k_stride[i] = args.k_cache.stride[i];
    p.v_stride[i] = args.v_cache.stride[i];
  }
  for (int i = 0; i < 2; ++i) {
    p.q_stride[i] = args.q.stride[i];
    p.out_stride[i] = args.out.stride[i];
  }
  p.table_stride = args.page_table.stride[0];
  p.seqs = static_cast<int>(args.kv_lens.shape[0]);
  p.group = static_cast<int>(desc.heads / desc.kv_heads);
  p.head_dim = static_cast<int>(desc.head_dim);
  p.page_size = static_cast<int>(args.k_cache.shape[1]);
  p.scale = desc.scale;
  if (rows == 0 || p.seqs == 0) {
    return;
  }
  bool vector = desc.head_dim % 8 == 0 && reinterpret_cast<uintptr_t>(args.k_cache.data) % 16 == 0;
  for (const int64_t stride : p.k_stride) {
    vector = vector && stride % 8 == 0;
  }
  auto* native = static_cast<cudaStream_t>(stream.native);
  if (desc.head_dim <= 32) {
    launch<1>(p, rows, desc, vector, native);
  } else if (desc.head_dim <= 64) {
    launch<2>(p, rows, desc, vector, native);
  } else if (desc.head_dim <= 128) {
    launch<4>(p, rows, desc, vector, native);
  } else {
    launch<8>(p, rows, desc, vector, native);
  }
}

}  // namespace

extern const AttentionBackend kAttentionPlainCuda;
const AttentionBackend kAttentionPlainCuda{
    .name = "attention_plain_cuda",
    .family = "plain",
    .supports = supports,
    .workspace_bytes = workspace_bytes,
    .run = run,
};

}  // namespace nibble
