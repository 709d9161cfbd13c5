// cpu_info as the emulated test program sees it: the highest level, on any machine with the AVX2
// that the emulation itself is compiled for. Takes the place of base/cpu_info.cpp in that program.
#include "base/cpu_info.h"

namespace nibble {

std::string_view to_string(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::Scalar:
      return "scalar";
    case CpuIsa::Avx2:
      return "avx2";
    case CpuIsa::Avx512:
      return "avx512";
    case CpuIsa::Avx512Bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

Result<CpuIsa> parse_cpu_isa(std::string_view /*text*/) { return detect_cpu_isa(); }

CpuIsa detect_cpu_isa() {
  return __builtin_cpu_supports("avx2") != 0 ? CpuIsa::Avx512Bf16 : CpuIsa::Scalar;
}

std::string cpu_model_name() { return "emulated"; }

int64_t largest_cache_bytes() { return 0; }

}  // namespace nibble
