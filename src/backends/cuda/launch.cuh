#pragma once
// Launching kernels that begin before the previous kernel of the stream has ended (programmatic
// dependent launch): such a kernel calls wait_for_previous_kernel() before it touches what others
// write.
#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/device/ptx.cuh"

namespace nibble::cuda {

/// From Hopper on; earlier chips run one kernel after another.
inline bool can_overlap() {
  static const bool kCan = [] {
    int device = 0;
    int major = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major >= 9;
  }();
  return kCan;
}

template <typename... Parameters>
void launch_overlapped(void (*kernel)(Parameters...),
                       dim3 grid,
                       unsigned threads,
                       cudaStream_t stream,
                       const Parameters&... parameters) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = can_overlap() ? 1 : 0;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, parameters...));
}

/// What such a kernel begins with: the next kernel may start, and from here on memory is as the
/// previous kernel left it. A kernel ends after the one that it waited for, so every kernel before
/// has ended too. Before the wait a kernel may read what no kernel of the step writes: weights,
/// angles, positions, slots, lengths, page tables, keys and values of earlier steps.
__device__ __forceinline__ void begin_overlapped() {
#if __CUDA_ARCH__ >= 900
  allow_next_kernel();
  wait_for_previous_kernel();
#endif
}

}  // namespace nibble::cuda
