// How nvfp4_w4a4_cublaslt stores a part of a matrix: plain C++, no device needed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nibble::cuda {

struct Fp4Part {
  std::vector<uint8_t> codes;   // [rows, k / 2], low nibble = even k
  std::vector<uint8_t> scales;  // e4m3 without signs in 128x4 tiles, padding zero
};

/// codes: [rows, k / 2]; scales: [rows, k / 16] e4m3. The tensor cores take scales without a sign:
/// a negative one flips the signs of its codes instead.
Fp4Part pack_fp4_part(std::span<const uint8_t> codes,
                      std::span<const uint8_t> scales,
                      int64_t rows,
                      int64_t k);

}  // namespace nibble::cuda
