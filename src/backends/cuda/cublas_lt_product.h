// One product through cuBLASLt: y^T[n, m] = w[n, k] x[m, k]^T (+ bias[n]), column-major as the
// library has it, and the rule by which its algorithm is chosen.
//
// One algorithm a matrix, whatever the number of rows: the first that the library proposes for a
// fixed number of rows without splits of K. So nothing is chosen from run to run, and a row's bits
// do not depend on the others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backends/cuda/cublas_lt_api.h"

struct CUstream_st;

namespace nibble::cuda {

inline constexpr size_t kLtWorkspace = size_t{4} << 20;

struct LtProblem {
  int64_t m = 0, n = 0, k = 0;
  int64_t ldx = 0, ldy = 0;    // elements; rows of w follow each other
  int in = 0;                  // type of w and x
  int out = 0;                 // of y
  uint32_t y_alignment = 16;   // bytes
  const void* bias = nullptr;  // [n] bf16
  // NVFP4 only: e4m3 scales of 16 columns of k, in 128x4 tiles (quant/nvfp4.h).
  const void* w_scales = nullptr;
  const void* x_scales = nullptr;
};

class LtProduct {
 public:
  LtProduct(const CublasLtApi& api, const LtProblem& problem);
  LtProduct(const LtProduct&) = delete;
  LtProduct& operator=(const LtProduct&) = delete;
  ~LtProduct();

  /// The library's first proposal; false when it has none.
  bool first_algorithm(uint32_t y_alignment, CublasLtAlgorithm* algorithm) const;

  /// y = alpha * product + beta * y; scalars on the device. False when the library refuses.
  bool run(const CublasLtAlgorithm& algorithm,
           const float* alpha,
           const float* beta,
           const void* w,
           const void* x,
           void* y,
           void* workspace,  // kLtWorkspace bytes
           CUstream_st* stream) const;

 private:
  bool layout(size_t index, int type, int64_t rows, int64_t cols, int64_t ld);

  const CublasLtApi& api_;
  void* desc_ = nullptr;
  std::array<void*, 3> layouts_{};
  bool ok_ = false;
};

/// Row counts for which a matrix may have algorithms of its own: up to so many; the last for all
/// more.
inline constexpr std::array<int64_t, 5> kLtRowClasses = {16, 64, 256, 1024, 4096};
inline constexpr size_t kLtReferenceClass = 2;
using LtAlgorithms = std::array<CublasLtAlgorithm, kLtRowClasses.size()>;
size_t lt_row_class(int64_t m);

/// The algorithm of a problem: what set_lt_algorithms() left where y is aligned, else the
/// reference, asked for once: a function of the problem without m and pointers, and of the
/// library's version. CHECKs that there is one.
CublasLtAlgorithm lt_algorithm(const CublasLtApi& api, const LtProblem& problem);

/// The library, for what a backend packs; throws a SystemError that names the backend without it.
const CublasLtApi& require_cublas_lt(const char* backend);

/// y = alpha * product + beta * y with the problem's algorithm; scalars on the device. CHECKs that
/// the library takes it.
void run_lt(const LtProblem& problem,
            const float* alpha,
            const float* beta,
            const void* w,
            const void* x,
            void* y,
            void* workspace,  // kLtWorkspace bytes
            CUstream_st* stream);

/// For all problems with the n, k, types and presence of a bias of `problem`.
void set_lt_algorithms(const LtProblem& problem, const LtAlgorithms& algorithms);
bool has_lt_algorithms(const LtProblem& problem);

}  // namespace nibble::cuda
