// Tensor maps of bf16 matrices for the copy engine of Hopper GPUs.
#pragma once

#include <cstdint>

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "base/check.h"

namespace nibble::cuda {

/// The driver's tensor-map encoder; the runtime library hands it out, so nothing links libcuda.
inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
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

/// [rows, k] bf16, rows `stride` elements apart, in boxes of 64 columns, box_rows rows and
/// box_blocks blocks of 64 columns; 128-byte swizzle, zeros past the edges. k / 64 is a dimension
/// of its own; where 64 does not divide k, all columns are one dimension (a box must not run on
/// into the next row) and box_blocks is 1.
inline CUtensorMap matrix_map(
    const void* data, int64_t rows, int64_t k, int64_t stride, int box_rows, int box_blocks) {
  constexpr int64_t kColumns = 64;
  CUtensorMap map;
  const bool whole = k % kColumns == 0;
  CHECK(whole || box_blocks == 1, "several K blocks a box need k to be a multiple of 64");
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(whole ? kColumns : k),
                               static_cast<cuuint64_t>(rows),
                               static_cast<cuuint64_t>(whole ? k / kColumns : 1)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(stride) * 2, kColumns * 2};
  const cuuint32_t box[3] = {
      kColumns, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_blocks)};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result = tensor_map_encoder()(&map,
                                               CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                               3,
                                               const_cast<void*>(data),
                                               sizes,
                                               strides,
                                               box,
                                               steps,
                                               CU_TENSOR_MAP_INTERLEAVE_NONE,
                                               CU_TENSOR_MAP_SWIZZLE_128B,
                                               CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS, "tensor map refused: rows ", rows, ", k ", k, ", stride ", stride);
  return map;
}

}  // namespace nibble::cuda
