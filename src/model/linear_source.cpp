#include "model/linear_source.h"

#include <cmath>

namespace nibble::model {

namespace {

using checkpoint::Checkpoint;
using checkpoint::LinearData;
using checkpoint::LinearInfo;

LinearInfo::Format format_of(QuantMode::Weight weight) {
  switch (weight) {
    case QuantMode::Weight::Bf16:
      return LinearInfo::Format::Bf16;
    case QuantMode::Weight::Nvfp4:
      return LinearInfo::Format::Nvfp4;
    case QuantMode::Weight::Fp8:
      return LinearInfo::Format::Fp8;
  }
  return LinearInfo::Format::Bf16;
}

// First non-finite bf16 value, or -1.
int64_t find_not_finite_bf16(std::span<const std::byte> data) {
  const auto* values = reinterpret_cast<const uint16_t*>(data.data());
  const auto count = static_cast<int64_t>(data.size() / 2);
  for (int64_t i = 0; i < count; ++i) {
    if ((values[i] & 0x7F80u) == 0x7F80u) {
      return i;
    }
  }
  return -1;
}

int64_t find_not_finite_f32(std::span<const std::byte> data) {
  const auto* values = reinterpret_cast<const uint32_t*>(data.data());
  const auto count = static_cast<int64_t>(data.size() / 4);
  for (int64_t i = 0; i < count; ++i) {
    if ((values[i] & 0x7F800000u) == 0x7F800000u) {
      return i;
    }
  }
  return -1;
}

int64_t find_nan_e4m3(std::span<const std::byte> data) {
  for (size_t i = 0; i < data.size(); ++i) {
    if ((static_cast<uint8_t>(data[i]) & 0x7Fu) == 0x7Fu) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

Result<void> require_scale(float value, const std::string& name) {
  if (!std::isfinite(value) || value < 0.0f) {
    return invalid("expected a finite scale, found " + std::to_string(value), name);
  }
  return {};
}

Result<void> check_values(const LinearInfo& info, const LinearData& data) {
  TRY(require_finite(data.weight_dtype, data.weight, info.weight));
  if (info.format == LinearInfo::Format::Nvfp4) {
    TRY(require_finite(DType::E4M3, data.weight_scale, info.weight_scale));
    TRY(require_scale(data.weight_scale_2, info.weight_scale_2));
  } else if (info.format == LinearInfo::Format::Fp8) {
    TRY(require_scale(data.weight_scale_2, info.weight_scale));
  }
  if (data.input_scale) {
    TRY(require_scale(*data.input_scale, info.input_scale));
  }
  return {};
}

Tensor host_view(const std::vector<std::byte>& data, DType dtype, Shape shape) {
  return {const_cast<std::byte*>(data.data()), dtype, shape, Device{}};
}

}  // namespace

Result<LinearInfo> find_part(const Checkpoint& source, const PartSpec& part, int64_t k) {
  if (part.tied_to.empty() || source.stores_linear(part.module)) {
    return source.linear(part.module, part.n, k, part.expected_from);
  }
  LinearInfo info;
  info.module = part.tied_to;
  info.n = part.n;
  info.k = k;
  info.weight = part.tied_to + ".weight";
  return info;
}

Result<void> check_format(QuantMode::Weight weight, const LinearInfo& info) {
  const LinearInfo::Format expected = format_of(weight);
  if (info.format != expected) {
    return invalid("expected a linear stored as " + std::string(to_string(expected)) + ", found " +
                       std::string(to_string(info.format)) +
                       "; another scheme needs a restart of the server",
                   info.module);
  }
  return {};
}

Result<void> require_finite(DType dtype, std::span<const std::byte> data, const std::string& name) {
  int64_t at = -1;
  if (dtype == DType::BF16) {
    at = find_not_finite_bf16(data);
  } else if (dtype == DType::F32) {
    at = find_not_finite_f32(data);
  } else if (dtype == DType::E4M3) {
    at = find_nan_e4m3(data);
  }
  if (at >= 0) {
    return invalid("expected finite values, found NaN or infinity at element " + std::to_string(at),
                   name);
  }
  return {};
}

Result<void> require_same_input_scaling(const Checkpoint& source,
                                        const LinearInfo& first,
                                        const LinearInfo& part) {
  if (first.pre_quant_scale == part.pre_quant_scale) {
    return {};
  }
  DType dtype = DType::F32;
  DType first_dtype = DType::F32;
  const std::vector<std::byte> found = TRY(source.read_pre_quant_scale(part, dtype));
  const std::vector<std::byte> expected = TRY(source.read_pre_quant_scale(first, first_dtype));
  if (found != expected || dtype != first_dtype) {
    return unsupported(
        "the parts of a fused linear need the same pre_quant_scale, found one unlike " +
            first.pre_quant_scale,
        part.pre_quant_scale);
  }
  return {};
}

Result<LinearData> read_part(const Checkpoint& source,
                             const PartSpec& part,
                             const LinearInfo& info) {
  LinearData data;
  if (info.module == part.tied_to) {
    data.weight =
        TRY(source.read_as(info.weight, DType::BF16, Shape{info.n, info.k}, part.expected_from));
  } else {
    data = TRY(source.read_linear(info));
  }
  TRY(check_values(info, data));
  return data;
}

Result<LinearData> read_part_without_matrix(const Checkpoint& source,
                                            const PartSpec& part,
                                            const LinearInfo& info) {
  LinearData data;
  if (info.module != part.tied_to) {
    data = TRY(source.read_without_matrix(info));
    TRY(check_values(info, data));
  }
  return data;
}

LinearPart view_of(const LinearInfo& info, LinearData& data, float& input_scale) {
  LinearPart part;
  const Device host{};
  switch (info.format) {
    case LinearInfo::Format::Bf16:
      part.weight = host_view(data.weight, DType::BF16, {info.n, info.k});
      break;
    case LinearInfo::Format::Nvfp4:
      part.weight = host_view(data.weight, DType::U8, {info.n, info.k / 2});
      part.weight_scale = host_view(data.weight_scale, DType::E4M3, {info.n, info.k / 16});
      part.weight_scale_2 = Tensor(&data.weight_scale_2, DType::F32, Shape{}, host);
      break;
    case LinearInfo::Format::Fp8:
      part.weight = host_view(data.weight, DType::E4M3, {info.n, info.k});
      part.weight_scale = Tensor(&data.weight_scale_2, DType::F32, Shape{}, host);
      break;
  }
  if (data.input_scale) {
    part.input_scale = Tensor(&input_scale, DType::F32, Shape{}, host);
  }
  if (!data.pre_quant_scale.empty()) {
    part.pre_quant_scale = host_view(data.pre_quant_scale, data.pre_quant_scale_dtype, {info.k});
  }
  return part;
}

void add_names(const LinearInfo& info, std::set<std::string, std::less<>>& names) {
  for (const std::string* name : {&info.weight,
                                  &info.weight_scale,
                                  &info.weight_scale_2,
                                  &info.input_scale,
                                  &info.pre_quant_scale,
                                  &info.bias}) {
    if (!name->empty()) {
      names.insert(*name);
    }
  }
}

}  // namespace nibble::model
