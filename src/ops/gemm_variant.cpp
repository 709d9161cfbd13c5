#include "ops/gemm_variant.h"

namespace nibble {

std::span<const GemmVariants> cuda_gemm_variants();  // empty in backends/none

std::string gemm_variant(const GemmBackend& backend, const GemmDesc& desc, int64_t rows) {
  for (const GemmVariants& variants : cuda_gemm_variants()) {
    if (variants.backend == backend.name) {
      return variants.of(desc, rows);
    }
  }
  return {};
}

std::string gemm_variants(const GemmBackend& backend, const GemmDesc& desc, int64_t max_rows) {
  std::string text;
  std::string current = gemm_variant(backend, desc, 1);
  int64_t up_to = 1;
  for (int64_t rows = 2; rows <= max_rows; rows *= 2) {
    const std::string next = gemm_variant(backend, desc, rows);
    if (next != current) {
      text += current + " to " + std::to_string(up_to) + ", ";
      current = next;
    }
    up_to = rows;
  }
  return current.empty() ? text : text + current;
}

}  // namespace nibble
