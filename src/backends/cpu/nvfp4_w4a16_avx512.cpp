// nvfp4_w4a16_avx512: NVFP4 weights, exact integer products with activations on a grid, AVX-512
// VNNI.
#include "backends/cpu/gemm_w4a16_grid_kernel.h"
#include "backends/cpu/simd_avx512.h"

namespace nibble::cpu {

void nvfp4_w4a16_avx512(const GemmTask* task, int64_t group_begin, int64_t group_end) {
  run_gemm_grid<Avx512>(*task, group_begin, group_end);
}

}  // namespace nibble::cpu
