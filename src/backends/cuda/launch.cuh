#pragma once
// Launching kernels that begin before the previous kernel of the stream has ended (programmatic
// dependent launch): such a kernel calls wait_for_previous_kernel() before it touches what others
// write.
#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/device/ptx.cuh"

namespace nibble::cuda {

/// An attribute of the current device, which stays the same: processes use one device.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

/// From Hopper on; earlier chips run one kernel after another.
inline bool can_overlap() {
  static const bool kCan = device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
  return kCan;
}

inline int multiprocessors() {
  static const int kCount = device_attribute(cudaDevAttrMultiProcessorCount);
  return kCount;
}

struct OverlappedLaunch {
  dim3 grid;
  unsigned threads = 0;
  size_t shared_bytes = 0;  // dynamic; the kernel's limit must allow it
  bool overlap = true;
};

template <typename... Parameters>
void launch_overlapped(void (*kernel)(Parameters...),
                       const OverlappedLaunch& launch,
                       cudaStream_t stream,
                       const Parameters&... parameters) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = launch.grid;
  config.blockDim = dim3(launch.threads);
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = launch.overlap && can_overlap() ? 1 : 0;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, parameters...));
}

template <typename... Parameters>
void launch_overlapped(void (*kernel)(Parameters...),
                       dim3 grid,
                       unsigned threads,
                       cudaStream_t stream,
                       const Parameters&... parameters) {
  launch_overlapped(
      kernel, OverlappedLaunch{.grid = grid, .threads = threads}, stream, parameters...);
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
