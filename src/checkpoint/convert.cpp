#include "checkpoint/convert.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "base/number_formats.h"

namespace nibble::checkpoint {

namespace {

uint16_t load16(const std::byte* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

float load_as_float(const std::byte* bytes, DType dtype) {
  if (dtype == DType::BF16) {
    return bf16_to_float(load16(bytes));
  }
  if (dtype == DType::F16) {
    return f16_to_float(load16(bytes));
  }
  float value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

void store_float(float value, std::byte* bytes, DType dtype) {
  if (dtype == DType::F32) {
    std::memcpy(bytes, &value, sizeof value);
    return;
  }
  const uint16_t bits = dtype == DType::BF16 ? float_to_bf16(value) : float_to_f16(value);
  std::memcpy(bytes, &bits, sizeof bits);
}

}  // namespace

Result<std::vector<std::byte>> convert_floats(std::vector<std::byte> bytes,
                                              DType from,
                                              DType to,
                                              const std::string& where) {
  if (from == to) {
    return bytes;
  }
  if (!is_float_dtype(from) || !is_float_dtype(to)) {
    return invalid(
        "expected " + std::string(to_string(to)) + ", found " + std::string(to_string(from)),
        where);
  }
  const auto from_bytes = static_cast<size_t>(size_of(from));
  const auto to_bytes = static_cast<size_t>(size_of(to));
  const size_t count = bytes.size() / from_bytes;
  std::vector<std::byte> out(count * to_bytes);
  for (size_t i = 0; i < count; ++i) {
    store_float(load_as_float(bytes.data() + i * from_bytes, from), out.data() + i * to_bytes, to);
  }
  return out;
}

std::vector<float> load_floats(std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

}  // namespace nibble::checkpoint
