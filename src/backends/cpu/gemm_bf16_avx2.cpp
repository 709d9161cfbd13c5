// gemm_bf16_avx2: BF16 weights, FP32 products, AVX2 + FMA.
#include "backends/cpu/gemm_kernel.h"
#include "backends/cpu/simd_avx2.h"

namespace nibble::cpu {

void gemm_bf16_avx2(const GemmTask* task, int64_t group_begin, int64_t group_end) {
  run_gemm<Avx2, Bf16Format<Avx2>>(*task, group_begin, group_end);
}

}  // namespace nibble::cpu
