// Every GEMM backend, in order of preference: one line each. The objects live in backends/.
#include <vector>

#include "ops/gemm.h"

namespace nibble {

extern const GemmBackend kNvfp4W4a16Avx512Bf16;
extern const GemmBackend kNvfp4W4a16Avx512;
extern const GemmBackend kNvfp4W4a16Avx2;
extern const GemmBackend kNvfp4W4a4Vnni;
extern const GemmBackend kNvfp4W4a4Avx2;
extern const GemmBackend kGemmBf16Avx512Bf16;
extern const GemmBackend kGemmBf16Avx512;
extern const GemmBackend kGemmBf16Avx2;
extern const GemmBackend kCpuReferenceGemm;

std::span<const GemmBackend* const> cuda_gemm_backends();  // empty in backends/none

std::span<const GemmBackend* const> gemm_backends() {
  static const std::vector<const GemmBackend*> kAll = [] {
    std::vector<const GemmBackend*> all;
    for (const GemmBackend* backend : cuda_gemm_backends()) {
      all.push_back(backend);
    }
    for (const GemmBackend* backend : {
             &kNvfp4W4a16Avx512,
             &kNvfp4W4a16Avx512Bf16,
             &kNvfp4W4a16Avx2,
             &kNvfp4W4a4Vnni,
             &kNvfp4W4a4Avx2,
             &kGemmBf16Avx512Bf16,
             &kGemmBf16Avx512,
             &kGemmBf16Avx2,
             &kCpuReferenceGemm,
         }) {
      all.push_back(backend);
    }
    return all;
  }();
  return kAll;
}

}  // namespace nibble
