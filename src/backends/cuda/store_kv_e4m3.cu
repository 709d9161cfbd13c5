#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/store_kv_e4m3.h"
#include "base/number_formats.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 128;

struct Params {
  const __nv_bfloat16* from[2];  // keys, values
  uint8_t* cache[2];
  const float* scale[2];
  const int32_t* slots;
  int64_t token_stride[2], head_stride[2], page_stride[2], place_stride[2], cache_head_stride[2];
  int64_t page_size;
  int heads, head_dim;
};

/// One block a token, for keys (blockIdx.y 0) or values (1).
__global__ void __launch_bounds__(kThreads) store_kv_e4m3_kernel(const Params p) {
  begin_overlapped();
  const auto token = static_cast<int64_t>(blockIdx.x);
  const unsigned which = blockIdx.y;
  const int64_t slot = p.slots[token];
  if (slot < 0) {
    return;
  }
  const float scale = *p.scale[which];
  const __nv_bfloat16* from = p.from[which] + token * p.token_stride[which];
  uint8_t* to = p.cache[which] + slot / p.page_size * p.page_stride[which] +
                slot % p.page_size * p.place_stride[which];
  for (int i = static_cast<int>(threadIdx.x); i < p.heads * p.head_dim; i += kThreads) {
    const int head = i / p.head_dim;
    const int channel = i % p.head_dim;
    const float value = __bfloat162float(from[head * p.head_stride[which] + channel]);
    to[head * p.cache_head_stride[which] + channel] = float_to_e4m3(__fdiv_rn(value, scale));
  }
}

}  // namespace

void store_kv_e4m3(const Tensor& k,
                   const Tensor& v,
                   const Tensor& slots,
                   const Tensor& k_scale,
                   const Tensor& v_scale,
                   const Tensor& k_cache,
                   const Tensor& v_cache,
                   Stream stream) {
  if (k.shape[0] == 0) {
    return;
  }
  Params p{};
  const Tensor* from[] = {&k, &v};
  const Tensor* cache[] = {&k_cache, &v_cache};
  const Tensor* scale[] = {&k_scale, &v_scale};
  for (int i = 0; i < 2; ++i) {
    p.from[i] = reinterpret_cast<const __nv_bfloat16*>(from[i]->as<uint16_t>());
    p.cache[i] = static_cast<uint8_t*>(cache[i]->data);
    p.scale[i] = scale[i]->as<float>();
    p.token_stride[i] = from[i]->stride[0];
    p.head_stride[i] = from[i]->stride[1];
    p.page_stride[i] = cache[i]->stride[0];
    p.place_stride[i] = cache[i]->stride[1];
    p.cache_head_stride[i] = cache[i]->stride[2];
  }
  p.slots = slots.as<int32_t>();
  p.page_size = k_cache.shape[1];
  p.heads = static_cast<int>(k.shape[1]);
  p.head_dim = static_cast<int>(k.shape[2]);
  launch_overlapped(store_kv_e4m3_kernel,
                    dim3(static_cast<unsigned>(k.shape[0]), 2),
                    kThreads,
                    static_cast<cudaStream_t>(stream.native),
                    p);
}

}  // namespace nibble::cuda
