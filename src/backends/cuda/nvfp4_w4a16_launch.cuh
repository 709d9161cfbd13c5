#pragma once
// Launching nvfp4_w4a16_sm90 for one kind of output: included by the files that instantiate it.
#include <algorithm>

#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/nvfp4_w4a16_sm90.cuh"
#include "backends/cuda/nvfp4_w4a16_sm90.h"
#include "backends/cuda/tensor_map.h"
#include "base/check.h"

namespace nibble::cuda {
namespace {  // each file that launches has its own copies

// Of large tiles, between the two warpgroups of a block: about a block of K, so that one has
// products left while the other stops between two pieces (docs/benchmarks.md; 350 to 700 are
// alike).
constexpr int kLagCycles = 700;

template <class Config>
void launch(const W4A16Plan& plan, const W4A16Args& args, cudaStream_t stream) {
  const auto kernel = nvfp4_w4a16_sm90<Config>;
  static const bool kReady = [&] {
    CUDA_CHECK(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSharedBytes));
    return true;
  }();
  (void)kReady;

  W4A16Sm90Params params{};
  params.whole_blocks = args.k % kRecordColumns == 0;
  params.x_map = matrix_map(
      args.x, args.m, args.k, args.ldx, Config::kTokens, params.whole_blocks ? Config::kBlocks : 1);
  // Not where a block may have nothing to do.
  params.lag = Config::kLine && plan.first_tiles == 0 ? 0 : kLagCycles;
  fill_common(args, &params);
  fill_tiles(plan, &params);
  params.weight_policy = params.token_tiles == 1 ? kEvictFirst : kEvictNormal;

  OverlappedLaunch shape;
  shape.threads = Config::kThreads;
  shape.shared_bytes = Config::kSharedBytes;
  shape.overlap = args.overlap;
  if (Config::kLine) {
    CHECK(plan.blocks <= multiprocessors(), "blocks that wait for each other: ", plan.blocks);
    shape.grid = dim3(static_cast<unsigned>(plan.blocks));
  } else if (Config::kWhole) {
    shape.grid = dim3(static_cast<unsigned>(std::min(params.first_tiles, multiprocessors())));
  } else {
    const auto blocks = static_cast<unsigned>(ceil_div(params.cuts.units, plan.units_per_block));
    // Large tiles take token tiles in turn: a second set of blocks would not be resident.
    shape.grid = dim3(blocks, Config::kSerial ? 1 : static_cast<unsigned>(params.token_tiles));
    CHECK(!Config::kSlices || shape.grid.x * shape.grid.y <=
                                  static_cast<unsigned>(Config::kMinBlocks * multiprocessors()),
          "blocks that wait for each other do not fit on the device: ",
          blocks);
  }
  launch_overlapped(kernel, shape, stream, params);
}

template <W4A16Output kOutput>
void launch_tile(const W4A16Plan& plan, const W4A16Args& args, cudaStream_t stream) {
  using Kernels = W4A16Kernels<kOutput>;
  switch (plan.tile) {
    case W4A16Tile::Tokens8:
      return launch<typename Kernels::Tokens8>(plan, args, stream);
    case W4A16Tile::Tokens16:
      return launch<typename Kernels::Tokens16>(plan, args, stream);
    case W4A16Tile::Tokens32:
      return launch<typename Kernels::Tokens32>(plan, args, stream);
    case W4A16Tile::Tokens64:
      return launch<typename Kernels::Tokens64>(plan, args, stream);
    case W4A16Tile::Tokens32Slices:
      return launch<typename Kernels::Tokens32Slices>(plan, args, stream);
    case W4A16Tile::Tokens64Slices:
      return launch<typename Kernels::Tokens64Slices>(plan, args, stream);
    case W4A16Tile::Tokens64Whole:
      return launch<typename Kernels::Tokens64Whole>(plan, args, stream);
    case W4A16Tile::Tokens128:
      return launch<typename Kernels::Tokens128>(plan, args, stream);
    case W4A16Tile::Tokens128Whole:
      return launch<typename Kernels::Tokens128Whole>(plan, args, stream);
    case W4A16Tile::Tokens128Mixed:
      return plan.chain ? launch<typename Kernels::Tokens128Chain>(plan, args, stream)
                        : launch<typename Kernels::Tokens128Mixed>(plan, args, stream);
    case W4A16Tile::Strips8:
      CHECK(false, "strips have a launch of their own");
  }
}

}  // namespace

}  // namespace nibble::cuda
