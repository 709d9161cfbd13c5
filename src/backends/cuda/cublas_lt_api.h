// The few functions of cuBLASLt that are used, loaded by name as in cublas_api.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace nibble::cuda {

// Enumerators of cublasLt.h and library_types.h (CUDA 13).
inline constexpr int kLtDescPointerMode = 2;
inline constexpr int kLtDescTransA = 3;
inline constexpr int kLtDescEpilogue = 7;
inline constexpr int kLtDescBiasPointer = 8;
inline constexpr uint32_t kLtEpilogueBias = 4;
inline constexpr int kLtDescScalePointerA = 17;
inline constexpr int kLtDescScalePointerB = 18;
inline constexpr int kLtDescScaleModeA = 31;
inline constexpr int kLtDescScaleModeB = 32;
inline constexpr int32_t kLtScaleVec16E4M3 = 1;  // unsigned e4m3, one for 16 columns
inline constexpr int kCudaE2M1 = 33;
inline constexpr int kLtPreferenceWorkspace = 1;
inline constexpr int kLtPreferenceReductions = 3;  // mask of schemes beside none
inline constexpr int kLtPreferenceAlignmentA = 5;  // B, C and D follow
inline constexpr int32_t kLtPointerModeDevice = 1;

struct CublasLtAlgorithm {
  std::array<uint64_t, 8> data{};
};
struct CublasLtHeuristic {
  CublasLtAlgorithm algorithm;
  size_t workspace_bytes = 0;
  int status = 0;
  float waves = 0;
  std::array<int, 4> reserved{};
};

struct CublasLtApi {
  void* handle = nullptr;  // of the process; any thread
  int (*desc_create)(void** desc, int compute_type, int scale_type) = nullptr;
  int (*desc_set)(void* desc, int attribute, const void* value, size_t size) = nullptr;
  int (*desc_destroy)(void* desc) = nullptr;
  int (*layout_create)(void** layout, int type, uint64_t rows, uint64_t cols, int64_t ld) = nullptr;
  int (*layout_destroy)(void* layout) = nullptr;
  int (*preference_create)(void** preference) = nullptr;
  int (*preference_set)(void* preference, int attribute, const void* value, size_t size) = nullptr;
  int (*preference_destroy)(void* preference) = nullptr;
  int (*heuristic)(void* handle,
                   void* desc,
                   void* a,
                   void* b,
                   void* c,
                   void* d,
                   void* preference,
                   int requested,
                   CublasLtHeuristic* results,
                   int* found) = nullptr;
  int (*matmul)(void* handle,
                void* desc,
                const void* alpha,
                const void* a,
                void* a_layout,
                const void* b,
                void* b_layout,
                const void* beta,
                const void* c,
                void* c_layout,
                void* d,
                void* d_layout,
                const CublasLtAlgorithm* algorithm,
                void* workspace,
                size_t workspace_bytes,
                CUstream_st* stream) = nullptr;
};

// Loads the library and creates the handle on the current device, once; nullptr when it cannot.
const CublasLtApi* cublas_lt_api();

}  // namespace nibble::cuda
