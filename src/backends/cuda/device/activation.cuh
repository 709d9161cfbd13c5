#pragma once
// The activations that kernels fuse: one definition, so that a fused kernel and the pair it
// replaces give the same bits.

namespace nibble::cuda {

/// silu(gate) * up; with a limit above 0 gate is cut at it from above, up on both sides.
__device__ __forceinline__ float silu_mul(float gate, float up, float limit) {
  if (limit > 0.0f) {
    gate = fminf(gate, limit);
    up = fminf(fmaxf(up, -limit), limit);
  }
  return gate / (1.0f + expf(-gate)) * up;
}

}  // namespace nibble::cuda
