// probe_dot_avx512bf16: rate of BF16 dot products.
#include "backends/cpu/probe_kernel.h"
#include "backends/cpu/simd_avx512.h"

namespace nibble::cpu {

float probe_dot_avx512bf16(int64_t rounds) { return probe_madd<Avx512Bf16>(rounds); }

}  // namespace nibble::cpu
