// nvfp4_w4a16_avx512: NVFP4 weights, FP32 products, AVX-512. Same bits as the AVX2 form.
#include "backends/cpu/gemm_kernel.h"
#include "backends/cpu/simd_avx512.h"

namespace nibble::cpu {

void nvfp4_w4a16_avx512(const GemmTask* task, int64_t group_begin, int64_t group_end) {
  run_gemm<Avx512, Nvfp4Format<Avx512>>(*task, group_begin, group_end);
}

}  // namespace nibble::cpu
