// The few functions of cuBLAS that are used, loaded by name: nothing links the library, and a
// machine without it merely lacks what needs it.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace nibble::cuda {

// Enumerators of cublas_api.h and library_types.h (CUDA 13).
inline constexpr int kCublasNoTranspose = 0;
inline constexpr int kCublasTranspose = 1;
inline constexpr int kCublasPointerModeDevice = 1;
inline constexpr int kCublasCompute32F = 68;
inline constexpr int kCublasDefaultAlgorithm = -1;
inline constexpr int kCudaBf16 = 14;
inline constexpr int kCudaF32 = 0;

struct CublasApi {
  void* handle = nullptr;  // of the process; callers hold no other. One thread at a time
  int (*set_stream)(void*, CUstream_st*) = nullptr;
  int (*set_workspace)(void*, void*, size_t) = nullptr;
  int (*set_pointer_mode)(void*, int) = nullptr;
  // Column-major c[m, n] = alpha op(a) op(b) + beta c.
  int (*gemm)(void* handle,
              int transpose_a,
              int transpose_b,
              int m,
              int n,
              int k,
              const void* alpha,
              const void* a,
              int a_type,
              int lda,
              const void* b,
              int b_type,
              int ldb,
              const void* beta,
              void* c,
              int c_type,
              int ldc,
              int compute_type,
              int algorithm) = nullptr;
};

// Loads the library and creates the handle on the current device, once; nullptr when it cannot.
const CublasApi* cublas_api();

}  // namespace nibble::cuda
