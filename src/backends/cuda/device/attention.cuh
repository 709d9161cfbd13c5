#pragma once
// Instructions that the attention kernels use beside those of ptx.cuh and cp_async.cuh:
// transposed matrix loads, base-2 exponentials, f16 in place of bf16 for caches of e4m3.

#include <cstdint>

#include <cuda_bf16.h>

#include "backends/cuda/device/cp_async.cuh"
#include "backends/cuda/device/ptx.cuh"

namespace nibble::cuda {

/// As load_matrices, each 8x8 matrix transposed.
__device__ __forceinline__ uint4 load_matrices_transposed(uint32_t address) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

/// 2^x; 0 for minus infinity.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ void store_shared_16(uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(v.x),
               "r"(v.y),
               "r"(v.z),
               "r"(v.w)
               : "memory");
}

/// Two f16 from two e4m3 codes, exact; the low byte in the low half.
__device__ __forceinline__ uint32_t f16_of_e4m3(uint32_t codes) {
  uint32_t v;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(v) : "h"(static_cast<uint16_t>(codes)));
  return v;
}

/// Two f16 rounded to nearest, `low` in the low half.
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t v;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}

/// Two bf16 as f16. Beyond the range of f16 they become its largest; NaN stays.
__device__ __forceinline__ uint32_t f16_of_bf16(uint32_t pair) {
  constexpr float kMost = 65504.0f;
  const auto clamp = [](float x) { return x > kMost ? kMost : x < -kMost ? -kMost : x; };
  return pack_f16(clamp(__uint_as_float(pair << 16)), clamp(__uint_as_float(pair & 0xFFFF0000u)));
}

/// d += a (16 x 16, row-major fragments) times b (16 x 8), f16 with fp32 accumulation.
__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4],
                                                 const uint32_t (&a)[4],
                                                 uint32_t b0,
                                                 uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two bf16, `low` in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

}  // namespace nibble::cuda
