#pragma once
// Launching nvfp4_w4a16_sm90 for one kind of output: included by the files that instantiate it.
#include <algorithm>
#include <atomic>

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/nvfp4_w4a16_sm90.cuh"
#include "backends/cuda/nvfp4_w4a16_sm90.h"
#include "base/check.h"

namespace nibble::cuda {
namespace {  // each file that launches has its own copies

/// The driver's tensor-map encoder; the runtime library hands it out, so nothing links libcuda.
PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static const auto kEncoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    CUDA_CHECK(cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
    CHECK(found == cudaDriverEntryPointSuccess, "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return kEncoder;
}

/// x [m, k] bf16 in boxes of 64 columns, tokens rows and blocks K64 blocks, 128-byte swizzle, zeros
/// past the edges. k / 64 is a dimension of its own; where 64 does not divide k, all columns are
/// one dimension (a box must not run on into the next row) and blocks is 1.
CUtensorMap token_map(const W4A16Args& args, int tokens, int blocks) {
  CUtensorMap map;
  const bool whole = args.k % kRecordColumns == 0;
  CHECK(whole || blocks == 1, "several K blocks a box need k to be a multiple of 64");
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(whole ? kRecordColumns : args.k),
                               static_cast<cuuint64_t>(args.m),
                               static_cast<cuuint64_t>(whole ? args.k / kRecordColumns : 1)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(args.ldx) * 2, kRecordColumns * 2};
  const cuuint32_t box[3] = {
      kRecordColumns, static_cast<cuuint32_t>(tokens), static_cast<cuuint32_t>(blocks)};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result = tensor_map_encoder()(&map,
                                               CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                               3,
                                               const_cast<void*>(args.x),
                                               sizes,
                                               strides,
                                               box,
                                               steps,
                                               CU_TENSOR_MAP_INTERLEAVE_NONE,
                                               CU_TENSOR_MAP_SWIZZLE_128B,
                                               CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS,
        "tensor map of x refused: m ",
        args.m,
        ", k ",
        args.k,
        ", ldx ",
        args.ldx);
  return map;
}

int multiprocessors() {
  static const int kCount = [] {
    int device = 0;
    int count = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
  }();
  return kCount;
}

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
  params.x_map = token_map(args, Config::kTokens, params.whole_blocks ? Config::kBlocks : 1);
  fill_common(args, &params);
  fill_tiles(plan, &params);
  params.weight_policy = params.token_tiles == 1 ? kEvictFirst : kEvictNormal;

  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(Config::kThreads);
  config.dynamicSmemBytes = Config::kSharedBytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = args.overlap ? 1 : 0;
  if (Config::kLine) {
    CHECK(plan.blocks <= multiprocessors(), "blocks that wait for each other: ", plan.blocks);
    config.gridDim = dim3(static_cast<unsigned>(plan.blocks));
  } else if (Config::kWhole) {
    config.gridDim = dim3(static_cast<unsigned>(std::min(params.first_tiles, multiprocessors())));
  } else {
    const auto blocks = static_cast<unsigned>(ceil_div(params.cuts.units, plan.units_per_block));
    // Large tiles take token tiles in turn: a second set of blocks would not be resident.
    config.gridDim = dim3(blocks, Config::kSerial ? 1 : static_cast<unsigned>(params.token_tiles));
    CHECK(!Config::kSlices || config.gridDim.x * config.gridDim.y <=
                                  static_cast<unsigned>(Config::kMinBlocks * multiprocessors()),
          "blocks that wait for each other do not fit on the device: ",
          blocks);
  }
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params));
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
  }
}

}  // namespace

}  // namespace nibble::cuda
