// Conversions between the float formats of stored tensors, on host memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "tensor/dtype.h"

namespace nibble::checkpoint {

constexpr bool is_float_dtype(DType dtype) {
  return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16;
}

// Equal types pass through; f32, bf16 and f16 convert with round to nearest even; anything else is
// an error that names `where`.
Result<std::vector<std::byte>> convert_floats(std::vector<std::byte> bytes,
                                              DType from,
                                              DType to,
                                              const std::string& where);

// Unaligned f32 bytes as values.
std::vector<float> load_floats(std::span<const std::byte> bytes);

}  // namespace nibble::checkpoint
