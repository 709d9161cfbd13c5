// Measurements behind the CUDA machine probe (ops/probe.h). Each allocates, runs some hundredths of
// a second on the stream and frees; 0 where memory or a library is missing.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace nibble::cuda {

double measure_read_gbps(CUstream_st* stream, int device);
double measure_bf16_gflops(CUstream_st* stream, int device);  // wgmma, Hopper only
// One BF16 product y[m, n] = x[m, k] w[n, k]^T by cuBLAS with cold weights.
double measure_cublas_us(CUstream_st* stream, int64_t m, int64_t n, int64_t k);

}  // namespace nibble::cuda
