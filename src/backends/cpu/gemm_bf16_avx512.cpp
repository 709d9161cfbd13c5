// gemm_bf16_avx512: BF16 weights, FP32 products, AVX-512. Same bits as the AVX2 form.
#include "backends/cpu/gemm_kernel.h"
#include "backends/cpu/simd_avx512.h"

namespace nibble::cpu {

void gemm_bf16_avx512(const GemmTask* task, int64_t group_begin, int64_t group_end) {
  run_gemm<Avx512, Bf16Format<Avx512>>(*task, group_begin, group_end);
}

}  // namespace nibble::cpu
