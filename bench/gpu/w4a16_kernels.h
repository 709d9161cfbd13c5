// The W4A16 kernels by name, for the check and benchmark programs.
#pragma once

#include <cstring>

#include "backends/cuda/nvfp4_w4a16_sm80.h"
#include "backends/cuda/nvfp4_w4a16_sm90.h"

namespace nibble::bench {

struct W4A16Kernel {
  const char* name;
  cuda::W4A16Plan (*plan)(int64_t m, int64_t n, int64_t k, int multiprocessors);
  bool (*plan_as)(
      cuda::W4A16Tile, int64_t m, int64_t n, int64_t k, int multiprocessors, cuda::W4A16Plan*);
  void (*launch)(const cuda::W4A16Plan&, const cuda::W4A16Args&, CUstream_st*);
};

inline constexpr W4A16Kernel kSm90Kernel{
    "nvfp4_w4a16_sm90", cuda::plan_w4a16, cuda::plan_w4a16_as, cuda::launch_w4a16_sm90};
inline constexpr W4A16Kernel kSm80Kernel{
    "nvfp4_w4a16_sm80", cuda::plan_w4a16_sm80, cuda::plan_w4a16_sm80_as, cuda::launch_w4a16_sm80};

/// "sm80" or "sm90"; null for other words.
inline const W4A16Kernel* w4a16_kernel(const char* family) {
  for (const W4A16Kernel* kernel : {&kSm90Kernel, &kSm80Kernel}) {
    if (std::strcmp(kernel->name + std::strlen("nvfp4_w4a16_"), family) == 0) {
      return kernel;
    }
  }
  return nullptr;
}

}  // namespace nibble::bench
