// Every GEMM backend, in order of preference: one line each. The objects live in backends/.
#include <vector>

#include "ops/gemm.h"

namespace nibble {

extern const GemmBackend kCpuReferenceGemm;

std::span<const GemmBackend* const> cuda_gemm_backends();  // empty in backends/none

std::span<const GemmBackend* const> gemm_backends() {
  static const std::vector<const GemmBackend*> kAll = [] {
    std::vector<const GemmBackend*> all;
    for (const GemmBackend* backend : cuda_gemm_backends()) {
      all.push_back(backend);
    }
    for (const GemmBackend* backend : {
             &kCpuReferenceGemm,
         }) {
      all.push_back(backend);
    }
    return all;
  }();
  return kAll;
}

}  // namespace nibble
