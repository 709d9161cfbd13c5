// Several algorithms for one matrix through cuBLASLt, one for each class of row counts, all with
// the same bits: measured when the matrix is packed.
//
// The library's proposals for one number of rows are up to seven times slower at others, but on
// Hopper nearly all of them add in the same order of K (bench/lab/README.md). So a class may have
// another algorithm than the reference if, on random data, every bit of y agrees; the fastest of
// those is taken. Which one that is may differ from start to start, the bits do not.
#pragma once

#include "backends/cuda/cublas_lt_product.h"

namespace nibble::cuda {

/// Finds the algorithms of n x k (types and whether there is a bias as in `problem`; m, strides and
/// pointers do not matter) and leaves them for lt_algorithm(), once for all matrices of that size.
/// Needs n x k x 2 bytes of device memory meanwhile; where that is not to be had, the reference
/// stays. Waits for the stream.
void tune_lt(const CublasLtApi& api, const LtProblem& problem, CUstream_st* stream);

}  // namespace nibble::cuda
