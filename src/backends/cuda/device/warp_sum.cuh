#pragma once
// The sum over a warp, in the one order that kernels with equal bits share.

namespace nibble::cuda {

/// In every lane; all lanes of the warp call it.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    v += __shfl_xor_sync(0xFFFFFFFFu, v, step);
  }
  return v;
}

}  // namespace nibble::cuda
