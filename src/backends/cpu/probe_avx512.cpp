// probe_fma_avx512, probe_int8_vnni: multiply-add rates in AVX-512.
#include "backends/cpu/probe_kernel.h"
#include "backends/cpu/simd_avx512.h"

namespace nibble::cpu {

float probe_fma_avx512(int64_t rounds) { return probe_madd<Avx512>(rounds); }

int32_t probe_int8_vnni(int64_t rounds) { return probe_dot<Avx512>(rounds); }

}  // namespace nibble::cpu
