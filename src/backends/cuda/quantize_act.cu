// One block a row, 16 values (a block of the format) at a time a thread, in registers from the read
// to the codes; rows of more than 32768 are read again in place.
//
// The codes are those of a true division, without one: q = value * (1 / divisor) differs from it by
// a few units in the last place, which matters only next to the midpoint of two codes. Blocks with
// such a value, with infinities or with divisors far from 1 are divided.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/device/activation.cuh"
#include "backends/cuda/device/bf16_vector.cuh"
#include "backends/cuda/launch.cuh"
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

/// Sixteen bf16.
struct Block16 {
  uint4 first, last;
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

__device__ __forceinline__ uint8_t to_e4m3(float v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(v));
  return static_cast<uint8_t>(pair);
#else
  return float_to_e4m3(v);
#endif
}

/// The largest magnitude; NaN is passed over.
__device__ __forceinline__ float top_of(const Block16& x) {
  const uint32_t words[8] = {
      x.first.x, x.first.y, x.first.z, x.first.w, x.last.x, x.last.y, x.last.z, x.last.w};
  uint32_t top = 0;
#pragma unroll
  for (const uint32_t word : words) {
    top = __vmaxu2(top, word & 0x7FFF7FFFu);
  }
  top = max(top & 0xFFFFu, top >> 16);
  if (top <= 0x7F80u) {
    return __uint_as_float(top << 16);
  }
  float largest = 0.0f;
#pragma unroll
  for (const uint32_t word : words) {
    largest = fmaxf(largest, fabsf(__uint_as_float(word << 16)));
    largest = fmaxf(largest, fabsf(__uint_as_float(word & 0xFFFF0000u)));
  }
  return largest;
}

/// Eight codes and their values by division; divisor 0 means codes 0.
__device__ __forceinline__ void divide8(
    const uint4& x, float divisor, float scale, uint32_t* codes, uint4* values) {
  float v[8];
  unpack8(x, v);
  *codes = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t code = divisor > 0.0f ? float_to_e2m1(v[j] / divisor) : 0u;
    *codes |= code << (4 * j);
    v[j] = e2m1_to_float(static_cast<uint8_t>(code)) * scale;
  }
  *values = pack8(v);
}

/// The same by the reciprocal of the divisor; returns how far the nearest value is from a midpoint.
__device__ __forceinline__ int multiply8(
    const uint4& x, float reciprocal, __nv_bfloat162 scale, uint32_t* codes, uint4* values) {
  constexpr float kSmallestNormal = 1.17549435e-38f;
  const uint32_t words[4] = {x.x, x.y, x.z, x.w};
  uint32_t magnitudes = 0;
  int distance = 0x7FFFFFFF;
#pragma unroll
  for (int j = 7; j >= 0; --j) {
    const uint32_t word = words[j / 2];
    const float v = __uint_as_float(j % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
    // Times 2^-126: 1 is the smallest normal number then, so that codes are the bits from 22 on,
    // subnormal ones too.
    const float q = fminf(fabsf(v) * reciprocal, kE2m1Max) * kSmallestNormal;
    const uint32_t rounded = __float_as_uint(q) + (1u << 21);
    distance = min(distance, abs(static_cast<int>(rounded << 10)));
    magnitudes = magnitudes * 16 + (rounded >> 22);
  }
  // Signs: of byte i of the codes, those of the values 2 i and 2 i + 1.
  const uint32_t a = __byte_perm(words[0], words[1], 0x7351);
  const uint32_t b = __byte_perm(words[2], words[3], 0x7351);
  *codes = magnitudes | (__byte_perm(a, b, 0x5410) >> 4 & 0x08080808u) |
           (__byte_perm(a, b, 0x7632) & 0x80808080u);
  // bf16 of the codes 0 to 7: 0, 3F00, 3F80, 3FC0, 4000, 4040, 4080, 40C0.
  uint32_t out[4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t four = half == 0 ? magnitudes : magnitudes >> 16;
    const uint32_t high = __byte_perm(0x3F3F3F00u, 0x40404040u, four);
    const uint32_t low = __byte_perm(0xC0800000u, 0xC0804000u, four);
    out[2 * half] = __byte_perm(low, high, 0x5140);
    out[2 * half + 1] = __byte_perm(low, high, 0x7362);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t with_sign = out[i] | (words[i] & 0x80008000u);
    const __nv_bfloat162 product =
        __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&with_sign), scale);
    out[i] = *reinterpret_cast<const uint32_t*>(&product);
  }
  *values = make_uint4(out[0], out[1], out[2], out[3]);
  return distance;
}

__device__ __forceinline__ void quantize_block(
    const Params& p, int row, int block, const Block16& x, float top, float global) {
  const uint8_t scale_code = to_e4m3(top / 6.0f / global);
  const float scale = e4m3_to_float(scale_code);
  const float divisor = scale * global;
  uint32_t codes[2];
  uint4 values[2];
  // Bits 10 and up of `distance` count units in the last place of q; its error is below 8.
  constexpr int kNear = 64 << 10;
  bool done = false;
  if (top < INFINITY && divisor > 0x1p-100f && divisor < 0x1p100f) {
    const float reciprocal = 1.0f / divisor;
    const __nv_bfloat162 pair = __float2bfloat162_rn(scale);
    const int distance = min(multiply8(x.first, reciprocal, pair, &codes[0], &values[0]),
                             multiply8(x.last, reciprocal, pair, &codes[1], &values[1]));
    done = distance > kNear;
  }
  if (!done) {
    divide8(x.first, divisor, scale, &codes[0], &values[0]);
    divide8(x.last, divisor, scale, &codes[1], &values[1]);
  }
  const int blocks = p.k / 16;
  const int64_t at = static_cast<int64_t>(row) * blocks + block;
  if (p.values != nullptr) {
    auto* to = reinterpret_cast<uint4*>(p.values) + 2 * at;
    to[0] = values[0];
    to[1] = values[1];
  }
  if (p.codes != nullptr) {
    reinterpret_cast<uint2*>(p.codes)[at] = make_uint2(codes[0], codes[1]);
  }
  if (p.scales != nullptr) {
    p.scales[p.tiled_scales ? tiled_offset(row, block, blocks) : at] = scale_code;
  }
}

__device__ __forceinline__ Block16 load16(const __nv_bfloat16* from, int block) {
  const auto* vectors = reinterpret_cast<const uint4*>(from) + 2 * block;
  return {vectors[0], vectors[1]};
}

__device__ __forceinline__ float squares8(const uint4& v) {
  float x[8];
  unpack8(v, x);
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    sum += x[j] * x[j];
  }
  return sum;
}

__device__ __forceinline__ uint4 norm8(const uint4& v, float inverse, const uint4& weights) {
  float x[8];
  float weight[8];
  unpack8(v, x);
  unpack8(weights, weight);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    x[j] = x[j] * inverse * weight[j];
  }
  return pack8(x);
}

__device__ __forceinline__ uint4 gate8(const uint4& v, const uint4& ups) {
  float x[8];
  float up[8];
  unpack8(v, x);
  unpack8(ups, up);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    x[j] = silu_mul(x[j], up[j], 0.0f);
  }
  return pack8(x);
}

/// What is quantized, from what was read; `inverse` is the norm's.
template <ActInput kInput>
__device__ __forceinline__ Block16
prepare(const Params& p, const __nv_bfloat16* from, int block, const Block16& x, float inverse) {
  if constexpr (kInput == ActInput::RmsNorm) {
    const Block16 weights = load16(p.norm_weight, block);
    return {norm8(x.first, inverse, weights.first), norm8(x.last, inverse, weights.last)};
  } else if constexpr (kInput == ActInput::SiluMul) {
    const Block16 up = load16(from + p.k, block);
    return {gate8(x.first, up.first), gate8(x.last, up.last)};
  } else {
    return x;
  }
}

/// kHeld: blocks of 16 a thread holds in registers; 0: none, every use reads and works them out
/// again.
template <ActInput kInput, int kHeld>
__global__ void __launch_bounds__(kMaxThreads) quantize_kernel(const Params p) {
  __shared__ float partial[kMaxThreads / 32];
#if __CUDA_ARCH__ >= 900
  // The kernel after this one is not let ahead: it reads token scales without waiting for them.
  wait_for_previous_kernel();
#endif
  const int row = static_cast<int>(blockIdx.x);
  const int blocks = p.k / 16;
  const int first = static_cast<int>(threadIdx.x);
  const int step = static_cast<int>(blockDim.x);
  if (row >= p.m) {  // a padding row of the tiled scales
    for (int b = first; b < (blocks + 3) / 4 * 4; b += step) {
      p.scales[tiled_offset(row, b, blocks)] = 0;
    }
    return;
  }
  const __nv_bfloat16* from = p.x + row * p.ldx;
  Block16 held[kHeld > 0 ? kHeld : 1];
  /// visit(block, x) for each of this thread's blocks; what it makes of x is kept.
  const auto for_each = [&](auto&& visit) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (first + i * step < blocks) {
          visit(first + i * step, held[i]);
        }
      }
    } else {
      for (int b = first; b < blocks; b += step) {
        held[0] = load16(from, b);
        visit(b, held[0]);
      }
    }
  };
  if constexpr (kHeld > 0) {
    for_each([&](int b, Block16& x) { x = load16(from, b); });
  }
  float inverse = 0.0f;
  if constexpr (kInput == ActInput::RmsNorm) {
    float sum = 0.0f;
    for_each([&](int, const Block16& x) { sum += squares8(x.first) + squares8(x.last); });
    sum = reduce_block(sum, partial, [](float a, float b) { return a + b; });
    inverse = 1.0f / sqrtf(sum / static_cast<float>(p.k) + p.eps);
  }
  float amax = 0.0f;
  for_each([&](int b, Block16& x) {
    x = prepare<kInput>(p, from, b, x, inverse);
    amax = fmaxf(amax, top_of(x));
    if (p.unquantized != nullptr) {
      auto* to = reinterpret_cast<uint4*>(p.unquantized + static_cast<int64_t>(row) * p.k) + 2 * b;
      to[0] = x.first;
      to[1] = x.last;
    }
  });
  if (p.values == nullptr && p.codes == nullptr) {
    return;
  }
  float global = p.input_scale != nullptr ? *p.input_scale : 0.0f;
  if (global <= 0.0f) {
    global = reduce_block(amax, partial, [](float a, float b) { return fmaxf(a, b); }) / 2688.0f;
    global = global > 0.0f ? global : 1.0f;
  }
  if (threadIdx.x == 0 && p.token_scale != nullptr) {
    p.token_scale[row] = global;
  }
  for_each([&](int b, Block16& x) {
    if constexpr (kHeld == 0) {
      x = prepare<kInput>(p, from, b, x, inverse);
    }
    quantize_block(p, row, b, x, top_of(x), global);
  });
  if (p.tiled_scales) {
    for (int b = blocks + first; b < (blocks + 3) / 4 * 4; b += step) {
      p.scales[tiled_offset(row, b, blocks)] = 0;
    }
  }
}

template <ActInput kInput>
void launch(const Params& p, unsigned rows, cudaStream_t stream) {
  const int blocks = p.k / 16;
  const auto run = [&](auto kernel, int held) {
    const int threads = held == 0 ? kMaxThreads : ((blocks + held - 1) / held + 31) / 32 * 32;
    launch_overlapped(kernel, dim3(rows), static_cast<unsigned>(threads), stream, p);
  };
  if (blocks <= kMaxThreads) {
    run(quantize_kernel<kInput, 1>, 1);
  } else if (blocks <= 2 * kMaxThreads) {
    run(quantize_kernel<kInput, 2>, 2);
  } else if (blocks <= 4 * kMaxThreads) {
    run(quantize_kernel<kInput, 4>, 4);
  } else {
    run(quantize_kernel<kInput, 0>, 0);
  }
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
