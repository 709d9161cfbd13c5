// nvfp4_w4a4_vnni: NVFP4 weights and activations, exact integer dot products, AVX-512 VNNI.
#include "backends/cpu/gemm_w4a4_kernel.h"
#include "backends/cpu/simd_avx512.h"

namespace nibble::cpu {

void nvfp4_w4a4_vnni(const GemmTask* task, int64_t group_begin, int64_t group_end) {
  run_gemm_w4a4<Avx512>(*task, group_begin, group_end);
}

}  // namespace nibble::cpu
