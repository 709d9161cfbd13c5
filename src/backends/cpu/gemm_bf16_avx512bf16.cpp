// gemm_bf16_avx512bf16: BF16 weights, BF16 dot products, AVX-512 BF16.
#include "backends/cpu/gemm_kernel.h"
#include "backends/cpu/simd_avx512.h"

namespace nibble::cpu {

void gemm_bf16_avx512bf16(const GemmTask* task, int64_t group_begin, int64_t group_end) {
  run_gemm<Avx512Bf16, Bf16Format<Avx512Bf16>>(*task, group_begin, group_end);
}

}  // namespace nibble::cpu
