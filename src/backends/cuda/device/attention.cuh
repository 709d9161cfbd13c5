#pragma once
// Instructions that the attention kernels use beside those of ptx.cuh: asynchronous 16-byte copies,
// transposed matrix loads, base-2 exponentials. One function is one instruction.

#include <cstdint>

#include <cuda_bf16.h>

#include "backends/cuda/device/ptx.cuh"

namespace nibble::cuda {

/// Copies 16 bytes to shared memory without a register in between.
__device__ __forceinline__ void copy_async_16(uint32_t destination, const void* source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(destination), "l"(source)
               : "memory");
}

/// The same; zeros instead when not `valid` (the source is then not read).
__device__ __forceinline__ void copy_async_16(uint32_t destination,
                                              const void* source,
                                              bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination),
               "l"(source),
               "r"(valid ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most `kPending` groups of this thread are in flight.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

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
