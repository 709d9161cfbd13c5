// probe_*_avx2: read speed and multiply-add rates in AVX2.
#include <cstdint>

#include <immintrin.h>

#include "backends/cpu/probe_kernel.h"
#include "backends/cpu/simd_avx2.h"

namespace nibble::cpu {

float probe_fma_avx2(int64_t rounds) { return probe_madd<Avx2>(rounds); }

int32_t probe_int8_avx2(int64_t rounds) { return probe_dot<Avx2>(rounds); }

uint64_t probe_read_avx2(const void* memory, int64_t bytes) {
  const auto* from = static_cast<const __m256i*>(memory);
  __m256i sum[8];
  for (auto& part : sum) {
    part = _mm256_setzero_si256();
  }
  for (int64_t i = 0; i < bytes / 32; i += 8) {
    __builtin_prefetch(from + i + 128);
    __builtin_prefetch(from + i + 130);
    __builtin_prefetch(from + i + 132);
    __builtin_prefetch(from + i + 134);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      sum[j] = _mm256_xor_si256(sum[j], _mm256_load_si256(from + i + j));
    }
  }
  for (int j = 1; j < 8; ++j) {
    sum[0] = _mm256_xor_si256(sum[0], sum[j]);
  }
  return static_cast<uint64_t>(_mm256_extract_epi64(sum[0], 0));
}

}  // namespace nibble::cpu
