#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/device/bf16_vector.cuh"
#include "backends/cuda/scale_columns.h"
#include "base/number_formats.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kAlignment = 256;

template <bool kVector>
__global__ void __launch_bounds__(kThreads) scale_columns_kernel(
    const __nv_bfloat16* x, const float* scale, int64_t k, int64_t ldx, __nv_bfloat16* out) {
  const auto row = static_cast<int64_t>(blockIdx.x);
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * 8;
  if (at >= k) {
    return;
  }
  float v[8];
  load8<kVector>(x + row * ldx, at, k, v);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    v[j] *= kVector || at + j < k ? scale[at + j] : 0.0f;
  }
  store8<kVector>(out + row * k, at, k, v);
}

}  // namespace

void scale_columns(const void* x,
                   const float* scale,
                   int64_t m,
                   int64_t k,
                   int64_t ldx,
                   void* out,
                   CUstream_st* stream) {
  if (m == 0) {
    return;
  }
  const auto* from = static_cast<const __nv_bfloat16*>(x);
  auto* to = static_cast<__nv_bfloat16*>(out);
  const dim3 grid(static_cast<unsigned>(m),
                  static_cast<unsigned>((k + kThreads * 8 - 1) / (kThreads * 8)));
  const bool vector = k % 8 == 0 && ldx % 8 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0 &&
                      reinterpret_cast<uintptr_t>(out) % 16 == 0;
  if (vector) {
    scale_columns_kernel<true><<<grid, kThreads, 0, stream>>>(from, scale, k, ldx, to);
  } else {
    scale_columns_kernel<false><<<grid, kThreads, 0, stream>>>(from, scale, k, ldx, to);
  }
  CUDA_CHECK(cudaGetLastError());
}

Tensor pre_quant_slot(const GemmDesc& desc) {
  return {nullptr, DType::F32, {desc.pre_quant_scale ? desc.k : 1}, Device{desc.device, 0}};
}

void pack_pre_quant(const GemmDesc& desc,
                    const LinearPart& part,
                    const Tensor& slot,
                    CUstream_st* stream) {
  std::vector<float> scale(static_cast<size_t>(slot.shape[0]), 1.0f);
  const Tensor& stored = part.pre_quant_scale;
  for (size_t i = 0; desc.pre_quant_scale && !stored.empty() && i < scale.size(); ++i) {
    scale[i] = stored.dtype == DType::F32 ? stored.as<float>()[i]
                                          : bf16_to_float(stored.as<uint16_t>()[i]);
  }
  CUDA_CHECK(cudaMemcpyAsync(
      slot.data, scale.data(), scale.size() * sizeof(float), cudaMemcpyHostToDevice, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));  // `scale` goes away
}

int64_t pre_quant_bytes(const GemmDesc& desc, int64_t rows) {
  return desc.pre_quant_scale ? (rows * desc.k * 2 + kAlignment - 1) / kAlignment * kAlignment : 0;
}

GemmArgs apply_pre_quant(const GemmDesc& desc,
                         const GemmArgs& args,
                         const Tensor& slot,
                         CUstream_st* stream) {
  GemmArgs scaled = args;
  if (!desc.pre_quant_scale) {
    return scaled;
  }
  const int64_t rows = args.x.shape[0];
  const int64_t bytes = pre_quant_bytes(desc, rows);
  CHECK(args.workspace.size_bytes() >= bytes, "workspace too small for scaled activations");
  scaled.x = Tensor(args.workspace.data, DType::BF16, {rows, desc.k}, args.x.device);
  scaled.workspace = args.workspace.rows(bytes, args.workspace.shape[0]);
  scale_columns(
      args.x.data, slot.as<float>(), rows, desc.k, args.x.stride[0], scaled.x.data, stream);
  return scaled;
}

}  // namespace nibble::cuda
