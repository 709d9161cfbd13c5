// Reading one linear's weight into the form that the kernels' packers want.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/json.h"
#include "base/number_formats.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/online.h"
#include "quant/nvfp4.h"

namespace nibble::checkpoint {

namespace {

constexpr uint8_t kE4m3NanMagnitude = 0x7F;
constexpr uint8_t kSignBit = 0x80;
constexpr int64_t kFp8BlockSize = 128;
constexpr int64_t kMxBlockSize = 32;
constexpr int64_t kCodesPerByte = 2;
constexpr uint8_t kCodeMagnitudes = 0x77;  // both codes of a byte without their signs

uint8_t* as_u8(std::vector<std::byte>& bytes) { return reinterpret_cast<uint8_t*>(bytes.data()); }
const uint8_t* as_u8(const std::vector<std::byte>& bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

std::string position(int64_t row, int64_t column) {
  return "[" + std::to_string(row) + ", " + std::to_string(column) + "]";
}

// Block scales must be finite and not negative. A NaN over a block of zero codes is what old
// exporters wrote for all-zero blocks: it becomes 0.
Result<void> check_block_scales(const LinearInfo& info,
                                std::vector<std::byte>& scales,
                                const std::vector<std::byte>& codes) {
  const int64_t blocks = info.k / info.group_size;
  const int64_t block_bytes = info.group_size / kCodesPerByte;
  uint8_t* scale = as_u8(scales);
  for (int64_t row = 0; row < info.n; ++row) {
    for (int64_t block = 0; block < blocks; ++block) {
      uint8_t& value = scale[row * blocks + block];
      if (value < kE4m3NanMagnitude) {
        continue;
      }
      const uint8_t* code = as_u8(codes) + row * (info.k / kCodesPerByte) + block * block_bytes;
      const bool zero = std::all_of(
          code, code + block_bytes, [](uint8_t pair) { return (pair & kCodeMagnitudes) == 0; });
      const bool nan = (value & kE4m3NanMagnitude) == kE4m3NanMagnitude;
      if (zero || value == kSignBit) {
        value = 0;
        continue;
      }
      return invalid(std::string("block scale ") + position(row, block) + " is " +
                         (nan ? "NaN" : "negative") + "; the file is damaged or not NVFP4",
                     info.weight_scale);
    }
  }
  return {};
}

std::vector<std::byte> repeat_each_twice(const std::vector<std::byte>& scales) {
  std::vector<std::byte> out(scales.size() * 2);
  for (size_t i = 0; i < scales.size(); ++i) {
    out[2 * i] = scales[i];
    out[2 * i + 1] = scales[i];
  }
  return out;
}

Result<void> check_fp8_weight(const LinearInfo& info, const std::vector<std::byte>& weight) {
  const uint8_t* codes = as_u8(weight);
  for (size_t i = 0; i < weight.size(); ++i) {
    if ((codes[i] & kE4m3NanMagnitude) == kE4m3NanMagnitude) {
      const auto index = static_cast<int64_t>(i);
      return invalid("value " + position(index / info.k, index % info.k) + " is NaN", info.weight);
    }
  }
  return {};
}

// scales as f32, whatever they are stored as.
std::vector<float> fp8_scales(const std::vector<std::byte>& bytes, DType dtype) {
  if (is_float_dtype(dtype)) {
    return load_floats(*convert_floats(bytes, dtype, DType::F32, {}));
  }
  std::vector<float> scales;
  scales.reserve(bytes.size());
  for (std::byte code : bytes) {
    scales.push_back(e8m0_to_float(static_cast<uint8_t>(code)));
  }
  return scales;
}

// e4m3 weight [n, k] times its tensor, row, block or group scale.
std::vector<float> scale_fp8(const LinearInfo& info,
                             const std::vector<std::byte>& weight,
                             const std::vector<float>& scales) {
  using Stored = LinearInfo::Stored;
  const bool blocks = info.stored == Stored::Fp8Block;
  const int64_t row_step = info.stored == Stored::AsFormat ? info.n : blocks ? kFp8BlockSize : 1;
  const int64_t column_step = blocks                         ? kFp8BlockSize
                              : info.stored == Stored::Mxfp8 ? kMxBlockSize
                                                             : info.k;
  const int64_t scale_columns = (info.k + column_step - 1) / column_step;
  std::vector<float> out(weight.size());
  for (int64_t row = 0; row < info.n; ++row) {
    for (int64_t column = 0; column < info.k; ++column) {
      const int64_t scale = row / row_step * scale_columns + column / column_step;
      const auto index = static_cast<size_t>(row * info.k + column);
      out[index] = e4m3_to_float(as_u8(weight)[index]) * scales[static_cast<size_t>(scale)];
    }
  }
  return out;
}

std::vector<std::byte> as_bytes(const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

LinearInfo whole_of(LinearInfo part) {
  part.n = std::exchange(part.stored_rows, 0);
  part.row_begin = 0;
  return part;
}

// The part's rows of something stored row by row for the whole matrix; empty stays empty.
template <typename T>
std::vector<T> rows_of(const LinearInfo& part, std::vector<T> whole) {
  const size_t row = whole.size() / static_cast<size_t>(part.stored_rows);
  const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(row) * part.row_begin;
  return {begin, begin + static_cast<std::ptrdiff_t>(row) * part.n};
}

// matrix [rows, columns] of elements of `size` bytes, stored [columns, stored_rows]: the rows from
// `begin` on.
std::vector<std::byte> transpose_rows(const std::vector<std::byte>& stored,
                                      int64_t stored_rows,
                                      int64_t begin,
                                      int64_t rows,
                                      int64_t columns,
                                      size_t size) {
  std::vector<std::byte> out(static_cast<size_t>(rows * columns) * size);
  for (int64_t column = 0; column < columns; ++column) {
    const std::byte* from =
        stored.data() + static_cast<size_t>(column * stored_rows + begin) * size;
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(out.data() + static_cast<size_t>(row * columns + column) * size,
                  from + static_cast<size_t>(row) * size,
                  size);
    }
  }
  return out;
}

}  // namespace

Result<std::vector<std::byte>> Checkpoint::read_matrix(const LinearInfo& info,
                                                       const std::string& name) const {
  if (info.expert < 0) {
    return read_bytes(name);
  }
  const TensorInfo& tensor = *find(name);
  const auto size = static_cast<uint64_t>(size_of(tensor.dtype));
  const int64_t slice = tensor.shape[1] * tensor.shape[2];
  const int64_t columns = slice / info.stored_rows;
  const int64_t skipped = info.transposed ? 0 : info.row_begin * columns;
  const int64_t wanted = info.transposed ? slice : info.n * columns;
  std::vector<std::byte> bytes(static_cast<size_t>(wanted) * size);
  TRY(read_part(name, static_cast<uint64_t>(info.expert * slice + skipped) * size, bytes));
  return info.transposed
             ? transpose_rows(bytes, info.stored_rows, info.row_begin, info.n, columns, size)
             : bytes;
}

Result<void> Checkpoint::read_nvfp4(const LinearInfo& info, LinearData& data) const {
  data.weight = TRY(read_matrix(info, info.weight));
  data.weight_dtype = DType::U8;
  data.weight_scale = TRY(read_matrix(info, info.weight_scale));
  TRY(check_block_scales(info, data.weight_scale, data.weight));
  if (info.group_size == 32) {
    data.weight_scale = repeat_each_twice(data.weight_scale);
  }
  data.weight_scale_2 = info.global_scale;
  return {};
}

Result<void> Checkpoint::decode_weight(const LinearInfo& info, LinearData& data) const {
  if (info.online) {
    return encode_online(info, data);
  }
  if (info.format == LinearInfo::Format::Nvfp4) {
    return read_nvfp4(info, data);
  }
  if (info.format == LinearInfo::Format::Fp8) {
    data.weight = TRY(read_bytes(info.weight));
    TRY(check_fp8_weight(info, data.weight));
    data.weight_dtype = DType::E4M3;
    data.weight_scale_2 = info.global_scale;
    return {};
  }
  data.weight_dtype = DType::BF16;
  if (info.stored == LinearInfo::Stored::AsFormat) {
    data.weight = TRY(convert_floats(
        TRY(read_matrix(info, info.weight)), find(info.weight)->dtype, DType::BF16, info.weight));
    return {};
  }
  data.weight = TRY(convert_floats(
      as_bytes(TRY(read_fp8(info))), DType::F32, DType::BF16, info.weight));  // rounded once
  return {};
}

Result<std::vector<float>> Checkpoint::read_fp8(const LinearInfo& info) const {
  const std::vector<std::byte> weight = TRY(read_bytes(info.weight));
  TRY(check_fp8_weight(info, weight));
  const std::vector<float> scales =
      fp8_scales(TRY(read_bytes(info.weight_scale)), find(info.weight_scale)->dtype);
  for (size_t i = 0; i < scales.size(); ++i) {
    if (!std::isfinite(scales[i]) || !(scales[i] > 0.0f)) {
      return invalid("expected finite positive scales, found " +
                         format_number(static_cast<double>(scales[i])) + " at element " +
                         std::to_string(i),
                     info.weight_scale);
    }
  }
  return scale_fp8(info, weight, scales);
}

Result<std::vector<float>> Checkpoint::read_weight(const LinearInfo& info) const {
  if (info.online) {
    return read_weight(source_of(info));
  }
  if (info.stored_rows > 0 && info.expert < 0) {
    return rows_of(info, TRY(read_weight(whole_of(info))));
  }
  if (info.format == LinearInfo::Format::Nvfp4) {
    LinearData data;
    TRY(read_nvfp4(info, data));
    std::vector<float> out(static_cast<size_t>(info.n * info.k));
    quant::decode(as_u8(data.weight),
                  as_u8(data.weight_scale),
                  data.weight_scale_2,
                  info.n,
                  info.k,
                  out.data());
    return out;
  }
  if (info.format == LinearInfo::Format::Fp8 || info.stored != LinearInfo::Stored::AsFormat) {
    return read_fp8(info);
  }
  return load_floats(TRY(convert_floats(
      TRY(read_matrix(info, info.weight)), find(info.weight)->dtype, DType::F32, info.weight)));
}

Result<LinearData> Checkpoint::read_linear(const LinearInfo& info) const {
  if (info.stored_rows > 0 && info.expert < 0 && !info.online) {
    LinearData whole = TRY(read_linear(whole_of(info)));
    for (std::vector<std::byte>* rows : {&whole.weight, &whole.weight_scale, &whole.bias}) {
      *rows = rows_of(info, std::move(*rows));
    }
    return whole;
  }
  LinearData data;
  TRY(decode_weight(info, data));
  TRY(read_factors(info, data));
  return data;
}

// What comes beside the matrix.
Result<void> Checkpoint::read_factors(const LinearInfo& info, LinearData& data) const {
  if (!info.input_scale.empty()) {
    const float value = TRY(read_scalar_of(info, info.input_scale));
    data.input_scale = info.inverse_scales ? 1.0f / value : value;
  }
  if (!info.pre_quant_scale.empty()) {
    data.pre_quant_scale = TRY(read_pre_quant_scale(info, data.pre_quant_scale_dtype));
  }
  if (!info.bias.empty()) {
    const TensorInfo* bias = find(info.bias);
    if (num_elements(bias->shape) != info.n) {
      return invalid("expected " + to_string(Shape{info.n}) + ", found " + to_string(bias->shape),
                     info.bias);
    }
    data.bias_dtype = bias->dtype;
    data.bias = TRY(read_small_floats(info.bias, data.bias_dtype));
  }
  return {};
}

std::optional<FileRange> Checkpoint::plain_bytes(std::string_view name,
                                                 DType dtype,
                                                 const Shape& shape) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return std::nullopt;
  }
  const auto& [file_index, info] = found->second;
  if (!info.unusable.empty() || info.dtype != dtype || !(info.shape == shape) ||
      find_table(name, shape) != nullptr) {
    return std::nullopt;
  }
  return FileRange{file_index, info.offset_bytes, info.size_bytes};
}

std::optional<PlainBytes> Checkpoint::plain_bytes(const LinearInfo& info) const {
  const bool nvfp4 = info.format == LinearInfo::Format::Nvfp4;
  const bool bf16 = info.format == LinearInfo::Format::Bf16;
  if ((!nvfp4 && !bf16) || info.stored != LinearInfo::Stored::AsFormat || info.online ||
      info.expert >= 0 || (nvfp4 && info.group_size != 16)) {
    return std::nullopt;
  }
  // The part's rows of a matrix stored row by row.
  const auto rows_of_tensor = [&](const std::string& name) -> std::optional<FileRange> {
    const auto found = tensors_.find(name);
    if (found == tensors_.end() || (bf16 && found->second.second.dtype != DType::BF16)) {
      return std::nullopt;
    }
    const auto& [file_index, tensor] = found->second;
    const auto stored = static_cast<uint64_t>(info.stored_rows > 0 ? info.stored_rows : info.n);
    const uint64_t row_bytes = tensor.size_bytes / stored;
    return FileRange{file_index,
                     tensor.offset_bytes + row_bytes * static_cast<uint64_t>(info.row_begin),
                     row_bytes * static_cast<uint64_t>(info.n)};
  };
  const auto weight = rows_of_tensor(info.weight);
  const auto scale = nvfp4 ? rows_of_tensor(info.weight_scale) : FileRange{};
  return weight && scale ? std::optional(PlainBytes{*weight, *scale}) : std::nullopt;
}

Result<LinearData> Checkpoint::read_without_matrix(const LinearInfo& info) const {
  LinearData data;
  TRY(read_factors(info.stored_rows > 0 && info.expert < 0 ? whole_of(info) : info, data));
  if (info.stored_rows > 0 && info.expert < 0 && !data.bias.empty()) {
    data.bias = rows_of(info, std::move(data.bias));
  }
  if (info.format == LinearInfo::Format::Nvfp4) {
    data.weight_dtype = DType::U8;
    data.weight_scale_2 = info.global_scale;
  }
  return data;
}

Result<std::vector<std::byte>> Checkpoint::read_pre_quant_scale(const LinearInfo& info,
                                                                DType& dtype) const {
  if (info.pre_quant_scale.empty()) {
    return std::vector<std::byte>();
  }
  dtype = find(info.pre_quant_scale)->dtype;
  return read_small_floats(info.pre_quant_scale, dtype);
}

Result<std::vector<std::byte>> Checkpoint::read_small_floats(const std::string& name,
                                                             DType& dtype) const {
  const DType stored = dtype;
  dtype = stored == DType::BF16 ? DType::BF16 : DType::F32;  // f16 would lose its small values
  return convert_floats(TRY(read_bytes(name)), stored, dtype, name);
}

}  // namespace nibble::checkpoint
