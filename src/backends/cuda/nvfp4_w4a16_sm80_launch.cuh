#pragma once
// Launching nvfp4_w4a16_sm80 for one kind of output: included by the files that instantiate it.
#include <algorithm>

#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/nvfp4_w4a16_sm80.cuh"
#include "backends/cuda/nvfp4_w4a16_sm80.h"
#include "base/check.h"

namespace nibble::cuda {
namespace {  // each file that launches has its own copies

template <class Config>
void launch_sm80(const W4A16Plan& plan, const W4A16Args& args, cudaStream_t stream) {
  const auto kernel = nvfp4_w4a16_sm80<Config>;
  constexpr int kManyBytes = Config::shared_bytes(Config::kManyStages);
  constexpr int kFewBytes = Config::shared_bytes(Config::kFewStages);
  constexpr int kReservedBytes = 1024;  // of a block, by the system
  static const int kSlots = Config::kBlocksPerSm * multiprocessors();
  static const bool kLarge = [&] {
    const bool large = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) >=
                       Config::kBlocksPerSm * (kManyBytes + kReservedBytes);
    CUDA_CHECK(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, large ? kManyBytes : kFewBytes));
    return large;
  }();

  W4A16Sm80Params params{};
  fill_common(args, &params);
  fill_tiles(plan, &params);
  params.x = static_cast<const __nv_bfloat16*>(args.x);
  params.ldx = args.ldx;
  params.k = static_cast<int>(args.k);
  params.many_stages = kLarge && !plan.few_stages;
  params.ring_bytes =
      (params.many_stages ? Config::kManyStages : Config::kFewStages) * Config::kStageBytes;

  const auto row_tiles = static_cast<int64_t>(params.cuts.row_tiles);
  const dim3 grid =
      Config::kWhole
          ? dim3(static_cast<unsigned>(std::min<int64_t>(row_tiles * params.token_tiles, kSlots)))
          : dim3(static_cast<unsigned>(params.cuts.units),
                 static_cast<unsigned>(params.token_tiles));
  kernel<<<grid,
           Config::kThreads,
           static_cast<size_t>(params.many_stages ? kManyBytes : kFewBytes),
           stream>>>(params);
  CUDA_CHECK(cudaGetLastError());
}

template <W4A16Output kOutput>
void launch_sm80_tile(const W4A16Plan& plan, const W4A16Args& args, cudaStream_t stream) {
  using Kernels = W4A16Sm80Kernels<kOutput>;
  switch (plan.tile) {
    case W4A16Tile::Tokens8:
      return launch_sm80<typename Kernels::Tokens8>(plan, args, stream);
    case W4A16Tile::Tokens16:
      return launch_sm80<typename Kernels::Tokens16>(plan, args, stream);
    case W4A16Tile::Tokens32:
      return launch_sm80<typename Kernels::Tokens32>(plan, args, stream);
    case W4A16Tile::Tokens64:
      return launch_sm80<typename Kernels::Tokens64>(plan, args, stream);
    case W4A16Tile::Tokens64Whole:
      return launch_sm80<typename Kernels::Tokens64Whole>(plan, args, stream);
    default:
      CHECK(false, "nvfp4_w4a16_sm80 has no tile ", to_string(plan.tile));
  }
}

}  // namespace
}  // namespace nibble::cuda
