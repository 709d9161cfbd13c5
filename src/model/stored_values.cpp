#include "model/stored_values.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/number_formats.h"
#include "checkpoint/checkpoint.h"
#include "quant/nvfp4.h"

namespace nibble::model {

namespace {

using checkpoint::Checkpoint;
using checkpoint::LinearData;
using checkpoint::LinearInfo;

const LinearInfo* find_coded_linear(const Checkpoint& checkpoint, const std::string& weight) {
  for (const LinearInfo& info : checkpoint.linears()) {
    if (info.weight == weight && info.format != LinearInfo::Format::Bf16) {
      return &info;
    }
  }
  return nullptr;
}

Result<std::vector<float>> decode_linear(const Checkpoint& checkpoint, const LinearInfo& info) {
  const LinearData data = TRY(checkpoint.read_linear(info));
  std::vector<float> values(static_cast<size_t>(info.n * info.k));
  if (info.format == LinearInfo::Format::Nvfp4) {
    quant::decode(reinterpret_cast<const uint8_t*>(data.weight.data()),
                  reinterpret_cast<const uint8_t*>(data.weight_scale.data()),
                  data.weight_scale_2,
                  info.n,
                  info.k,
                  values.data());
  } else {
    std::transform(data.weight.begin(), data.weight.end(), values.begin(), [&](std::byte code) {
      return e4m3_to_float(static_cast<uint8_t>(code)) * data.weight_scale_2;
    });
  }
  return values;
}

Result<std::vector<float>> decode_plain(std::span<const std::byte> raw,
                                        DType dtype,
                                        const std::string& name) {
  std::vector<float> values(raw.size() / static_cast<size_t>(size_of(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    const std::byte* at = raw.data() + i * static_cast<size_t>(size_of(dtype));
    uint16_t half = 0;
    switch (dtype) {
      case DType::F32:
        std::memcpy(&values[i], at, sizeof(float));
        break;
      case DType::BF16:
        std::memcpy(&half, at, sizeof(half));
        values[i] = bf16_to_float(half);
        break;
      case DType::F16:
        std::memcpy(&half, at, sizeof(half));
        values[i] = f16_to_float(half);
        break;
      case DType::E4M3:
        values[i] = e4m3_to_float(static_cast<uint8_t>(*at));
        break;
      case DType::U8:
        values[i] = static_cast<float>(static_cast<uint8_t>(*at));
        break;
      default:
        return unsupported("no numbers to show of type " + std::string(to_string(dtype)), name);
    }
  }
  return values;
}

}  // namespace

Result<StoredValues> read_stored_values(const std::string& directory,
                                        const std::string& name,
                                        int64_t max_rows,
                                        const std::vector<FileStamp>& stamps) {
  const Checkpoint checkpoint = TRY(Checkpoint::open(directory));
  if (!stamps.empty() && checkpoint.stamps() != stamps) {
    return fail(ErrorCode::WrongState,
                "its files changed since the weights were loaded, and memory holds them in the "
                "kernels' format only",
                directory);
  }
  const checkpoint::TensorInfo* info = checkpoint.find(name);
  if (info == nullptr) {
    return fail(ErrorCode::NotFound, "no such tensor in " + directory, name);
  }
  StoredValues out;
  out.shape = info->shape;
  if (const LinearInfo* linear = find_coded_linear(checkpoint, name)) {
    out.shape = Shape{linear->n, linear->k};
    out.values = TRY(decode_linear(checkpoint, *linear));
  } else {
    std::vector<std::byte> raw(info->size_bytes);
    TRY(checkpoint.read(name, raw));
    out.values = TRY(decode_plain(raw, info->dtype, name));
  }
  const int64_t all_rows = out.shape.rank == 0 ? 1 : out.shape[0];
  out.rows = std::clamp<int64_t>(max_rows, 0, all_rows);
  const int64_t row_size = all_rows == 0 ? 0 : num_elements(out.shape) / all_rows;
  out.values.resize(static_cast<size_t>(out.rows * row_size));
  return out;
}

}  // namespace nibble::model
