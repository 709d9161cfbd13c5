// nvfp4_w4a16_sm90 for few tokens: launch; the kernel is in nvfp4_w4a16_sm90_strips.cuh.
#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/nvfp4_w4a16_sm90_strips.cuh"
#include "backends/cuda/tensor_map.h"
#include "base/check.h"

namespace nibble::cuda {
namespace {

/// The packed matrix as lines (W4A16StripsParams), in boxes of `words` of kStripStage lines.
CUtensorMap line_map(const W4A16StripsParams& p, int words) {
  CUtensorMap map;
  const cuuint64_t sizes[3] = {kTileRecordBytes / 4, static_cast<cuuint64_t>(p.cuts.total()), 1};
  const cuuint64_t strides[2] = {kTileRecordBytes, kTileRecordBytes};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(words), kStripStage, 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result = tensor_map_encoder()(&map,
                                               CU_TENSOR_MAP_DATA_TYPE_UINT32,
                                               3,
                                               const_cast<uint8_t*>(p.packed),
                                               sizes,
                                               strides,
                                               box,
                                               steps,
                                               CU_TENSOR_MAP_INTERLEAVE_NONE,
                                               CU_TENSOR_MAP_SWIZZLE_NONE,
                                               CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS, "tensor map of a packed matrix refused");
  return map;
}

template <bool kWhole, W4A16Output kOutput>
void launch(const W4A16StripsParams& params, bool overlap, cudaStream_t stream) {
  const auto kernel = nvfp4_w4a16_sm90_strips<kWhole, kOutput>;
  static const bool kReady = [&] {
    CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024));
    return true;
  }();
  (void)kReady;
  OverlappedLaunch shape;
  shape.grid = dim3(static_cast<unsigned>(params.plan.blocks));
  shape.threads = static_cast<unsigned>(params.plan.warps) * 32;
  shape.shared_bytes = static_cast<size_t>(params.plan.shared_bytes);
  shape.overlap = overlap;
  launch_overlapped(kernel, shape, stream, params);
}

template <W4A16Output kOutput>
void launch_output(const W4A16StripsParams& params, bool overlap, cudaStream_t stream) {
  return params.plan.whole ? launch<true, kOutput>(params, overlap, stream)
                           : launch<false, kOutput>(params, overlap, stream);
}

}  // namespace

void launch_w4a16_sm90_strips(const W4A16Args& args, CUstream_st* stream) {
  W4A16StripsParams params{};
  CHECK(plan_w4a16_strips(args.m, args.n, args.k, multiprocessors(), &params.plan),
        "no strips for ",
        args.m,
        " rows of ",
        args.n,
        " x ",
        args.k);
  fill_common(args, &params);
  params.x = static_cast<const __nv_bfloat16*>(args.x);
  params.ldx = args.ldx;
  params.k = static_cast<int>(args.k);
  params.codes_map = line_map(params, 512 / 4);
  params.scales_map = line_map(params, 64 / 4);
  params.by_blocks = FastDivisor(params.plan.blocks);
  params.by_pieces = FastDivisor(params.plan.pieces);
  params.by_token_vectors = FastDivisor(params.cuts.k_blocks * 8);
  if (args.swiglu) {
    launch_output<W4A16Output::SwiGlu>(params, args.overlap, stream);
  } else if (args.token_multiplier != nullptr) {
    launch_output<W4A16Output::TokenScaled>(params, args.overlap, stream);
  } else {
    launch_output<W4A16Output::Plain>(params, args.overlap, stream);
  }
}

}  // namespace nibble::cuda
