// The values of per-tensor scales: read and judged when a checkpoint is opened.
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"

namespace nibble::checkpoint {

namespace {

// Weights lie below 1e4 in magnitude, so a multiplier (amax / 2688) above this is a divisor that a
// converter put under the wrong name; divisors below its inverse likewise.
constexpr float kMaxGlobalScale = 64.0f;

// As many digits as tell the float from its neighbours.
std::string shortest(float value) {
  if (!std::isfinite(value)) {
    return format_number(static_cast<double>(value));
  }
  char buffer[32];
  const auto [end, status] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return status == std::errc{} ? std::string(buffer, end) : std::to_string(value);
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

void Checkpoint::check_scalars() {
  for (LinearInfo& info : linears_) {
    const std::string& name =
        info.format == LinearInfo::Format::Nvfp4 ? info.weight_scale_2 : info.weight_scale;
    if (info.format != LinearInfo::Format::Bf16) {
      auto value = read_scalar_of(info, name);
      if (!value) {
        linear_errors_.emplace(info.module, std::move(value).error());
        continue;
      }
      const float multiplier = info.inverse_scales ? 1.0f / *value : *value;
      if (!std::isfinite(*value) || !(*value > 0.0f) || !std::isfinite(multiplier)) {
        linear_errors_.emplace(info.module,
                               Error{ErrorCode::InvalidArgument,
                                     "expected a finite positive scale, found " + shortest(*value),
                                     name});
        continue;
      }
      if (info.format == LinearInfo::Format::Nvfp4 && multiplier > kMaxGlobalScale) {
        linear_errors_.emplace(
            info.module,
            Error{ErrorCode::InvalidArgument,
                  "found " + shortest(*value) + ", expected a " +
                      (info.inverse_scales ? "divisor (about 2688 / amax); it looks like a "
                                             "multiplier under the wrong name"
                                           : "multiplier (about amax / 2688); it looks like a "
                                             "divisor under the wrong name"),
                  name});
        continue;
      }
      info.global_scale = multiplier;
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
