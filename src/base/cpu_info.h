// What this CPU can do. Read once at start and passed on; kernels are picked by CpuIsa.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace nibble {

// Ordered: a level includes the ones before it.
enum class CpuIsa : uint8_t {
  Scalar,      // x86-64-v2
  Avx2,        // AVX2, FMA, F16C
  Avx512,      // AVX-512 F, BW, VL, DQ and VNNI
  Avx512Bf16,  // and BF16 dot products
};

std::string_view to_string(CpuIsa isa);
Result<CpuIsa> parse_cpu_isa(std::string_view text);  // "scalar", "avx2", "avx512", "avx512_bf16"

CpuIsa detect_cpu_isa();
std::string cpu_model_name();
// Of the last level, which other cores may share; 0 where the system does not say.
int64_t largest_cache_bytes();

}  // namespace nibble
