// nvfp4_w4a16_avx2: NVFP4 weights, FP32 products, AVX2 + FMA + F16C.
#include "backends/cpu/gemm_kernel.h"
#include "backends/cpu/simd_avx2.h"

namespace nibble::cpu {

void nvfp4_w4a16_avx2(const GemmTask* task, int64_t group_begin, int64_t group_end) {
  run_gemm<Avx2, Nvfp4Format<Avx2>>(*task, group_begin, group_end);
}

}  // namespace nibble::cpu
