// Element types of stored and computed tensors. Device-visible: no library includes.
#pragma once

#include <cstdint>
#include <string_view>

namespace nibble {

enum class DType : uint8_t {
  F32,
  BF16,
  F16,
  E4M3,    // FP8, finite only
  E8M0,    // power-of-two scale
  E2M1x2,  // two FP4 values a byte, low nibble = even column; shapes count bytes
  I64,
  I32,
  I8,
  U8,
  Bool,
};

constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::I64:
      return 8;
    case DType::F32:
    case DType::I32:
      return 4;
    case DType::BF16:
    case DType::F16:
      return 2;
    case DType::E4M3:
    case DType::E8M0:
    case DType::E2M1x2:
    case DType::I8:
    case DType::U8:
    case DType::Bool:
      return 1;
  }
  return 0;
}

constexpr std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return "f32";
    case DType::BF16:
      return "bf16";
    case DType::F16:
      return "f16";
    case DType::E4M3:
      return "f8_e4m3";
    case DType::E8M0:
      return "f8_e8m0";
    case DType::E2M1x2:
      return "e2m1x2";
    case DType::I64:
      return "i64";
    case DType::I32:
      return "i32";
    case DType::I8:
      return "i8";
    case DType::U8:
      return "u8";
    case DType::Bool:
      return "bool";
  }
  return "unknown";
}

}  // namespace nibble
