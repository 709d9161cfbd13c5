// attention_decode_few: decode attention for few sequences, where time is latency. The bits of
// attention_decode_paged; the work is that of attention_decode_few.cuh, one chunk of a KV head a
// block.
//
// Blocks are small enough for two on a multiprocessor, or one beside a block of the product before:
// they begin while that still runs.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/attention_decode_few.cuh"
#include "backends/cuda/cuda_check.h"
#include "backends/cuda/launch.cuh"
#include "base/check.h"

namespace nibble::cuda {

namespace {

using namespace decode_few;  // NOLINT(google-build-using-namespace): this kernel's own pieces

constexpr int kStages = 3;

template <typename Cache, int kDim, int kRows>
__global__ void __launch_bounds__(kDecodeThreads, kDecodeBlocksPerSm) attention_decode_few(
    const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(128) uint8_t shared[];
  allow_next_kernel();
  const Share share = share_of(p, static_cast<int>(blockIdx.x));
  if (share.length <= 0) {
    if (share.chunk == 0) {  // zeros
      wait_for_previous_kernel();
      auto* out =
          reinterpret_cast<uint32_t*>(out_row<kDim>(p, share.sequence, share.head * p.group));
      for (int i = static_cast<int>(threadIdx.x); i < p.group * kDim / 2; i += kDecodeThreads) {
        out[i] = 0;
      }
    }
    return;
  }
  if (share.chunk >= share.cut.count) {
    return;  // nobody waits for a block that has left
  }
  attend_chunk<Cache, kDim, kRows, kStages>(
      p, share, shared, RowsFromMemory<kDim>{}, RowsToMemory<kDim>{}, [] {
        wait_for_previous_kernel();
      });
}

template <typename Cache, int kDim, int kRows>
void launch(const DecodeParams& params, cudaStream_t stream) {
  constexpr int kBytes = Layout<Cache, kDim, kRows, kStages>::kBytes;
  const auto kernel = attention_decode_few<Cache, kDim, kRows>;
  static const bool kReady = [&] {
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    return true;
  }();
  (void)kReady;
  launch_overlapped(kernel,
                    {.grid = dim3(static_cast<unsigned>(params.call.seqs * params.call.kv_heads *
                                                        params.max_chunks)),
                     .threads = kDecodeThreads,
                     .shared_bytes = kBytes},
                    stream,
                    params);
}

}  // namespace

void launch_attention_decode_few(const DecodeParams& params, cudaStream_t stream) {
  const auto by_rows = [&](auto cache, auto dim) {
    using Cache = decltype(cache);
    constexpr int kDim = decltype(dim)::value;
    params.group <= 8 ? launch<Cache, kDim, 8>(params, stream)
                      : launch<Cache, kDim, 16>(params, stream);
  };
  const auto by_dim = [&](auto cache) {
    params.call.head_dim == 128 ? by_rows(cache, std::integral_constant<int, 128>{})
                                : by_rows(cache, std::integral_constant<int, 64>{});
  };
  params.call.k_scale != nullptr ? by_dim(uint8_t{}) : by_dim(__nv_bfloat16{});
}

}  // namespace nibble::cuda
