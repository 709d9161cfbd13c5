// CUDA_CHECK(call): throws SystemError with the call, the place and the driver's words.
#pragma once

#include <cuda_runtime_api.h>

namespace nibble::cuda {

[[noreturn]] void throw_cuda_error(cudaError_t error, const char* call, const char* file, int line);

}  // namespace nibble::cuda

#define CUDA_CHECK(call)                                                              \
  do {                                                                                \
    const cudaError_t nibble_cuda_error = (call);                                     \
    if (nibble_cuda_error != cudaSuccess) {                                           \
      ::nibble::cuda::throw_cuda_error(nibble_cuda_error, #call, __FILE__, __LINE__); \
    }                                                                                 \
  } while (false)
