// One block a row: the row is read once into shared memory (normalised or gated on the way), its
// largest magnitude found, then each thread quantizes blocks of 16.
#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/device/activation.cuh"
#include "backends/cuda/device/bf16_vector.cuh"
#include "backends/cuda/quantize_act.h"
#include "base/check.h"
#include "base/number_formats.h"

namespace nibble::cuda {
namespace {

constexpr int kMaxThreads = 512;

struct Params {
  const __nv_bfloat16* x;
  const __nv_bfloat16* norm_weight;
  const float* input_scale;
  __nv_bfloat16* unquantized;
  __nv_bfloat16* values;
  uint8_t* codes;
  uint8_t* scales;
  float* token_scale;
  int64_t ldx;
  int m, k;
  float eps;
  bool tiled_scales;
};

template <typename Combine>
__device__ __forceinline__ float reduce_block(float v, float* shared, Combine&& combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    v = combine(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
  }
  const int warps = static_cast<int>(blockDim.x) / 32;
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    shared[threadIdx.x / 32] = v;
  }
  __syncthreads();
  v = shared[0];
  for (int i = 1; i < warps; ++i) {
    v = combine(v, shared[i]);
  }
  return v;
}

__device__ __forceinline__ int64_t tiled_offset(int row, int block, int blocks) {
  const int tiles = (blocks + 3) / 4;
  return (static_cast<int64_t>(row / 128) * tiles + block / 4) * 512 + row % 32 * 16 +
         row % 128 / 32 * 4 + block % 4;
}

template <ActInput kInput>
__global__ void __launch_bounds__(kMaxThreads) quantize_kernel(const Params p) {
  extern __shared__ __align__(16) uint4 row_vectors[];  // [k / 8]
  __shared__ float partial[kMaxThreads / 32];
  const int row = static_cast<int>(blockIdx.x);
  const int vectors = p.k / 8;
  const int blocks = p.k / 16;
  if (row >= p.m) {  // a padding row of the tiled scales
    for (int b = static_cast<int>(threadIdx.x); b < (blocks + 3) / 4 * 4; b += blockDim.x) {
      p.scales[tiled_offset(row, b, blocks)] = 0;
    }
    return;
  }
  const auto* from = reinterpret_cast<const uint4*>(p.x + row * p.ldx);
  float inverse = 0.0f;
  if constexpr (kInput == ActInput::RmsNorm) {
    float sum = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < vectors; i += blockDim.x) {
      const uint4 v = from[i];
      row_vectors[i] = v;
      float x[8];
      unpack8(v, x);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sum += x[j] * x[j];
      }
    }
    sum = reduce_block(sum, partial, [](float a, float b) { return a + b; });
    inverse = 1.0f / sqrtf(sum / static_cast<float>(p.k) + p.eps);
  }
  float amax = 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += blockDim.x) {
    uint4 v = kInput == ActInput::RmsNorm ? row_vectors[i] : from[i];
    float x[8];
    unpack8(v, x);
    if constexpr (kInput == ActInput::RmsNorm) {
      float weight[8];
      unpack8(reinterpret_cast<const uint4*>(p.norm_weight)[i], weight);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        x[j] = x[j] * inverse * weight[j];
      }
      v = pack8(x);
      unpack8(v, x);
    }
    if constexpr (kInput == ActInput::SiluMul) {
      float up[8];
      unpack8(from[vectors + i], up);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        x[j] = silu_mul(x[j], up[j], 0.0f);
      }
      v = pack8(x);
      unpack8(v, x);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      amax = fmaxf(amax, fabsf(x[j]));
    }
    row_vectors[i] = v;
    if (p.unquantized != nullptr) {
      reinterpret_cast<uint4*>(p.unquantized + static_cast<int64_t>(row) * p.k)[i] = v;
    }
  }
  if (p.values == nullptr && p.codes == nullptr) {
    return;
  }
  float global = p.input_scale != nullptr ? *p.input_scale : 0.0f;
  if (global <= 0.0f) {
    global = reduce_block(amax, partial, [](float a, float b) { return fmaxf(a, b); }) / 2688.0f;
    global = global > 0.0f ? global : 1.0f;
  } else {
    __syncthreads();  // the row is complete
  }
  if (threadIdx.x == 0 && p.token_scale != nullptr) {
    p.token_scale[row] = global;
  }
  for (int b = static_cast<int>(threadIdx.x); b < blocks; b += blockDim.x) {
    float x[2][8];
    unpack8(row_vectors[2 * b], x[0]);
    unpack8(row_vectors[2 * b + 1], x[1]);
    float top = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      top = fmaxf(top, fmaxf(fabsf(x[0][j]), fabsf(x[1][j])));
    }
    const uint8_t scale_code = float_to_e4m3(top / 6.0f / global);
    const float scale = e4m3_to_float(scale_code);
    const float divisor = scale * global;
    uint32_t codes[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t code = divisor > 0.0f ? float_to_e2m1(x[half][j] / divisor) : 0u;
        codes[half] |= code << (4 * j);
        x[half][j] = e2m1_to_float(static_cast<uint8_t>(code)) * scale;
      }
    }
    const int64_t at = static_cast<int64_t>(row) * blocks + b;
    if (p.values != nullptr) {
      auto* to = reinterpret_cast<uint4*>(p.values) + 2 * at;
      to[0] = pack8(x[0]);
      to[1] = pack8(x[1]);
    }
    if (p.codes != nullptr) {
      reinterpret_cast<uint2*>(p.codes)[at] = make_uint2(codes[0], codes[1]);
    }
    if (p.scales != nullptr) {
      p.scales[p.tiled_scales ? tiled_offset(row, b, blocks) : at] = scale_code;
    }
  }
  if (p.tiled_scales) {
    for (int b = blocks + static_cast<int>(threadIdx.x); b < (blocks + 3) / 4 * 4;
         b += blockDim.x) {
      p.scales[tiled_offset(row, b, blocks)] = 0;
    }
  }
}

template <ActInput kInput>
void launch(const Params& p, unsigned rows, cudaStream_t stream) {
  constexpr int kMostShared = 224 * 1024;
  const int shared = p.k * 2;
  CHECK(shared <= kMostShared, "rows of ", p.k, " are too long to quantize");
  if (shared > 40 * 1024) {
    CUDA_CHECK(cudaFuncSetAttribute(
        quantize_kernel<kInput>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared));
  }
  const int threads = std::clamp((p.k / 8 + 31) / 32 * 32, 32, kMaxThreads);
  quantize_kernel<kInput>
      <<<rows, static_cast<unsigned>(threads), static_cast<size_t>(shared), stream>>>(p);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void quantize_act(const QuantizeActArgs& args, CUstream_st* stream) {
  CHECK(args.k % 16 == 0 && args.k > 0 && args.ldx % 8 == 0,
        "rows of ",
        args.k,
        " elements, stride ",
        args.ldx);
  CHECK(!args.tiled_scales || args.scales != nullptr, "tiled scales need a place");
  if (args.m == 0) {
    return;
  }
  Params p{};
  p.x = static_cast<const __nv_bfloat16*>(args.x);
  p.norm_weight = static_cast<const __nv_bfloat16*>(args.norm_weight);
  p.input_scale = args.input_scale;
  p.unquantized = static_cast<__nv_bfloat16*>(args.unquantized);
  p.values = static_cast<__nv_bfloat16*>(args.values);
  p.codes = args.codes;
  p.scales = args.scales;
  p.token_scale = args.token_scale;
  p.ldx = args.ldx;
  p.m = static_cast<int>(args.m);
  p.k = static_cast<int>(args.k);
  p.eps = args.eps;
  p.tiled_scales = args.tiled_scales;
  const auto rows = static_cast<unsigned>(args.tiled_scales ? (args.m + 127) / 128 * 128 : args.m);
  switch (args.input) {
    case ActInput::Plain:
      return launch<ActInput::Plain>(p, rows, stream);
    case ActInput::RmsNorm:
      return launch<ActInput::RmsNorm>(p, rows, stream);
    case ActInput::SiluMul:
      return launch<ActInput::SiluMul>(p, rows, stream);
  }
}

}  // namespace nibble::cuda
