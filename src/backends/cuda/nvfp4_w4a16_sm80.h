// NVFP4 W4A16 product on mma.sync, for every GPU from Ampere on: plans (plain C++) and launch.
// Takes what nvfp4_w4a16_sm90 takes, with the same cuts of K: the bits are the same.
#pragma once

#include "backends/cuda/nvfp4_w4a16_sm90.h"

namespace nibble::cuda {

/// The tile for m rows: 8, 16, 32 or 64 tokens shared, or whole tiles of 64. Pure.
W4A16Plan plan_w4a16_sm80(int64_t m, int64_t n, int64_t k, int multiprocessors);

/// A plan with the given tile, for measurements and tests; false for tiles that only the Hopper
/// kernel has and where (m, n, k) does not allow it.
bool plan_w4a16_sm80_as(
    W4A16Tile tile, int64_t m, int64_t n, int64_t k, int multiprocessors, W4A16Plan* plan);

/// Asynchronous, no allocation, graph-capturable. No token multipliers; `overlap` has no effect.
/// Throws SystemError when a CUDA call fails.
void launch_w4a16_sm80(const W4A16Plan& plan, const W4A16Args& args, CUstream_st* stream);
/// What it calls for args.swiglu.
void launch_w4a16_sm80_swiglu(const W4A16Plan& plan, const W4A16Args& args, CUstream_st* stream);

}  // namespace nibble::cuda
