#pragma once
// Values of decode_step_sm90 that are worked out at every use. What the compiler keeps over the
// whole step is a register less for the products, or in local memory, which takes 1 us to read
// back: all that shared memory leaves the L1 nothing.

#include <cstdint>

#include "backends/cuda/decode_step_plan.h"

namespace nibble::cuda {

/// threadIdx.x.
__device__ __forceinline__ int thread_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  __builtin_assume(thread >= 0 && thread < kStepWarps * 32);
  return thread;
}

/// Of a turn of the loop over layers and products.
__device__ __forceinline__ int step_product_of(int turn) {
  static_assert(kNumStepProducts == 4);
  int product;
  asm volatile("and.b32 %0, %1, 3;" : "=r"(product) : "r"(turn));
  return product;
}
__device__ __forceinline__ int step_layer_of(int turn) {
  int layer;
  asm volatile("shr.u32 %0, %1, 2;" : "=r"(layer) : "r"(turn));
  return layer;
}

/// A value that is not to be worked out before it is used.
__device__ __forceinline__ int again(int value) {
  int same;
  asm volatile("mov.u32 %0, %1;" : "=r"(same) : "r"(value));
  return same;
}

/// A value that all lanes of a warp have, in a uniform register.
__device__ __forceinline__ int uniform(int value) { return __reduce_max_sync(0xFFFFFFFFu, value); }

}  // namespace nibble::cuda
