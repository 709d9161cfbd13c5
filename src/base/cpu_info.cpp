#include "base/cpu_info.h"

#include <algorithm>
#include <fstream>

#include <unistd.h>

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

Result<CpuIsa> parse_cpu_isa(std::string_view text) {
  for (CpuIsa isa : {CpuIsa::Scalar, CpuIsa::Avx2, CpuIsa::Avx512, CpuIsa::Avx512Bf16}) {
    if (text == to_string(isa)) {
      return isa;
    }
  }
  return invalid("unknown CPU level '" + std::string(text) +
                     "', expected auto, scalar, avx2, avx512 or avx512_bf16",
                 "cpu-isa");
}

CpuIsa detect_cpu_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool avx512 =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vnni") != 0;
  if (avx2 && avx512) {
    return __builtin_cpu_supports("avx512bf16") != 0 ? CpuIsa::Avx512Bf16 : CpuIsa::Avx512;
  }
  if (avx2) {
    return CpuIsa::Avx2;
  }
#endif
  return CpuIsa::Scalar;
}

std::string cpu_model_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("model name")) {
      const size_t colon = line.find(':');
      if (colon != std::string::npos && colon + 2 <= line.size()) {
        return line.substr(colon + 2);
      }
    }
  }
  return "unknown CPU";
}

int64_t largest_cache_bytes() {
  int64_t largest = 0;
#ifdef _SC_LEVEL4_CACHE_SIZE
  for (const int level : {_SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL4_CACHE_SIZE}) {
    largest = std::max<int64_t>(largest, sysconf(level));
  }
#endif
  return largest;
}

}  // namespace nibble
