// The values of per-tensor scales and other small tensors: read and judged when a checkpoint is
// opened.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/quantize_rules.h"

namespace nibble::checkpoint {

namespace {

// Factors of activations lie about 1; these limits only keep nonsense out.
constexpr float kMinInputFactor = 1e-10f;
constexpr float kMaxInputFactor = 1e10f;

// As many digits as tell the float from its neighbours.
std::string shortest(float value) {
  if (!std::isfinite(value)) {
    return format_number(static_cast<double>(value));
  }
  char buffer[32];
  const auto [end, status] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return status == std::errc{} ? std::string(buffer, end) : std::to_string(value);
}

std::vector<int64_t> load_integers(const std::vector<std::byte>& bytes, DType dtype) {
  const auto size = static_cast<size_t>(size_of(dtype));
  std::vector<int64_t> values;
  for (size_t at = 0; at + size <= bytes.size(); at += size) {
    int64_t value = 0;
    if (dtype == DType::I64) {
      std::memcpy(&value, bytes.data() + at, sizeof value);
    } else if (dtype == DType::I32) {
      int32_t narrow = 0;
      std::memcpy(&narrow, bytes.data() + at, sizeof narrow);
      value = narrow;
    } else {
      return {};  // no integers
    }
    values.push_back(value);
  }
  return values;
}

// Whether a weight of the linear (or of the stack it is a slice of) is not +-0.
Result<bool> has_nonzero_code(const Checkpoint& checkpoint, const LinearInfo& info) {
  std::vector<std::byte> codes(checkpoint.find(info.weight)->size_bytes);
  TRY(checkpoint.read(info.weight, codes));
  constexpr std::byte kMagnitudes{0x77};  // both codes of a byte without their signs
  return std::any_of(codes.begin(), codes.end(), [](std::byte pair) {
    return (pair & kMagnitudes) != std::byte{0};
  });
}

}  // namespace

Result<float> Checkpoint::read_scalar(const std::string& name) const {
  return read_scalar_of(LinearInfo{}, name);
}

Result<float> Checkpoint::read_scalar_of(const LinearInfo& info, const std::string& name) const {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) {
    return fail(ErrorCode::NotFound, "missing", name);
  }
  const int64_t count = num_elements(tensor->shape);
  if (count != 1 && info.expert < 0) {
    return invalid("expected one number, found " + to_string(tensor->shape), name);
  }
  std::vector<std::byte> bytes = TRY(read_bytes(name));
  bytes = TRY(convert_floats(bytes, tensor->dtype, DType::F32, name));
  if (count == 1) {
    return load_floats(bytes).front();
  }
  // One an expert, or one a part of an expert; the table has checked which.
  const int64_t experts = find(info.weight)->shape[0];
  const int64_t index = count == experts
                            ? info.expert
                            : info.expert * (info.stored_rows / info.n) + info.row_begin / info.n;
  return load_floats(bytes)[static_cast<size_t>(index)];
}

Result<void> Checkpoint::check_global_scale(LinearInfo& info) const {
  const bool nvfp4 = info.format == LinearInfo::Format::Nvfp4;
  const std::string& name = nvfp4 ? info.weight_scale_2 : info.weight_scale;
  const float value = TRY(read_scalar_of(info, name));
  const float multiplier = info.inverse_scales ? 1.0f / value : value;
  if (!std::isfinite(value) || !(value > 0.0f) || !std::isfinite(multiplier)) {
    return invalid("expected a finite positive scale, found " + shortest(value), name);
  }
  if (nvfp4 && multiplier > kMaxGlobalScale) {
    return invalid("found " + shortest(value) + ", expected a " +
                       (info.inverse_scales ? "divisor (about 2688 / amax); it looks like a "
                                              "multiplier under the wrong name"
                                            : "multiplier (about amax / 2688); it looks like a "
                                              "divisor under the wrong name"),
                   name);
  }
  if (nvfp4 && multiplier < kMinGlobalScale && TRY(has_nonzero_code(*this, info))) {
    return invalid("found " + shortest(value) + ", expected a " +
                       (info.inverse_scales ? "divisor (about 2688 / amax)"
                                            : "multiplier (about amax / 2688)") +
                       "; with this one all weights are next to zero, the file is damaged",
                   name);
  }
  info.global_scale = multiplier;
  return {};
}

Result<void> Checkpoint::check_pre_quant_scale(const LinearInfo& info) const {
  DType dtype = DType::F32;
  const std::vector<std::byte> stored = TRY(read_pre_quant_scale(info, dtype));
  if (stored.empty()) {
    return {};
  }
  const std::vector<float> factors =
      load_floats(TRY(convert_floats(stored, dtype, DType::F32, info.pre_quant_scale)));
  for (size_t i = 0; i < factors.size(); ++i) {
    const float size = std::abs(factors[i]);
    if (!(size >= kMinInputFactor && size <= kMaxInputFactor)) {  // nor NaN
      return invalid("expected factors of 1e-10 to 1e10 in size, found " + shortest(factors[i]) +
                         " at element " + std::to_string(i),
                     info.pre_quant_scale);
    }
  }
  return {};
}

// Zero points and a column order, which symmetric NVFP4 and FP8 do not have: all zero, and the
// order that counts up (or -1, unset), change nothing.
Result<void> Checkpoint::check_offsets(const LinearInfo& info) const {
  const std::string stem = info.weight.substr(0, info.weight.rfind('.'));
  const std::string zero_point = stem + ".weight_zero_point";
  if (find(zero_point) != nullptr) {
    const std::vector<std::byte> bytes = TRY(read_bytes(zero_point));
    if (std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; })) {
      return unsupported("is not zero; weights with zero points are not supported", zero_point);
    }
  }
  const std::string order = stem + ".weight_g_idx";
  const TensorInfo* stored = find(order);
  if (stored == nullptr) {
    return {};
  }
  const std::vector<std::byte> bytes = TRY(read_bytes(order));
  const std::vector<int64_t> groups = load_integers(bytes, stored->dtype);
  const bool unset = std::all_of(groups.begin(), groups.end(), [](int64_t g) { return g == -1; });
  bool in_order = static_cast<int64_t>(groups.size()) == info.k;
  for (size_t i = 0; in_order && i < groups.size(); ++i) {
    in_order = groups[i] == static_cast<int64_t>(i) / info.group_size;
  }
  if (groups.empty() || !(unset || in_order)) {
    return unsupported("gives columns to groups out of order; activation ordering is not supported",
                       order);
  }
  return {};
}

void Checkpoint::check_scalars() {
  const auto note = [this](const LinearInfo& info, Result<void> checked) {
    if (checked) {
      return true;
    }
    linear_errors_.emplace(info.module, std::move(checked).error());
    return false;
  };
  for (LinearInfo& info : linears_) {
    if (info.format != LinearInfo::Format::Bf16 && !note(info, check_global_scale(info))) {
      continue;
    }
    if (!note(info, check_pre_quant_scale(info)) || !note(info, check_offsets(info))) {
      continue;
    }
    if (!info.input_scale.empty()) {
      auto value = read_scalar_of(info, info.input_scale);
      const TensorInfo& stored = *find(info.input_scale);
      const bool one_number = info.expert >= 0 || num_elements(stored.shape) == 1;
      if (!value && one_number && is_float_dtype(stored.dtype)) {  // the file could not be read
        linear_errors_.emplace(info.module, std::move(value).error());
        continue;
      }
      if (!value || !std::isfinite(*value) || !(*value > 0.0f)) {
        add_warning({ErrorCode::InvalidArgument,
                     "is not a finite positive number; it is ignored and activations are scaled "
                     "by token where they are quantized",
                     info.input_scale});
        info.input_scale.clear();
      }
    }
  }
}

}  // namespace nibble::checkpoint
