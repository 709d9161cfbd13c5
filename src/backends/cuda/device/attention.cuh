#pragma once
// Instructions that the attention kernels use beside those of ptx.cuh and cp_async.cuh:
// transposed matrix loads, base-2 exponentials. One function is one instruction.

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

/// Two bf16, `low` in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

}  // namespace nibble::cuda
