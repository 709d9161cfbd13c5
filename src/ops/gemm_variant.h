// What a GEMM backend would do with a number of rows, in words: the tile or kernel that it chooses
// by itself. For `nibble inspect` and `nibble bench gemm`; nothing depends on it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ops/gemm.h"

namespace nibble {

struct GemmVariants {
  std::string_view backend;  // registry name
  std::string (*of)(const GemmDesc&, int64_t rows);
};

// Empty where the backend has one way only.
std::string gemm_variant(const GemmBackend& backend, const GemmDesc& desc, int64_t rows);

// The changes over row counts, "t8 to 8, t16 to 16, ..., t128w": for powers of two up to max_rows.
std::string gemm_variants(const GemmBackend& backend, const GemmDesc& desc, int64_t max_rows);

}  // namespace nibble
