#include "quantize/encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/number_formats.h"

namespace nibble::quantize {

using checkpoint::Checkpoint;
using checkpoint::LinearInfo;

namespace {

constexpr uint8_t kSmallestScaleCode = 1;
constexpr int64_t kNoRow = -1;

struct RowStatistics {
  double error_squared = 0;
  double value_squared = 0;
  double max_error = 0;
  int64_t zero_blocks = 0;
  int64_t smallest_scale = 0;
};

RowStatistics encode_row(std::span<const float> values,
                         float global_scale,
                         uint8_t* codes,
                         uint8_t* scales) {
  RowStatistics statistics;
  float decoded[quant::kBlockSize];
  const auto blocks = static_cast<int64_t>(values.size()) / quant::kBlockSize;
  for (int64_t block = 0; block < blocks; ++block) {
    const float* value = values.data() + block * quant::kBlockSize;
    uint8_t* code = codes + block * quant::kBlockSize / 2;
    scales[block] = quant::encode_block(value, global_scale, code);
    quant::decode(code, scales + block, global_scale, 1, quant::kBlockSize, decoded);
    bool zero = true;
    for (int64_t i = 0; i < quant::kBlockSize; ++i) {
      const double error = std::fabs(static_cast<double>(value[i]) - decoded[i]);
      statistics.error_squared += error * error;
      statistics.value_squared += static_cast<double>(value[i]) * value[i];
      statistics.max_error = std::max(statistics.max_error, error);
      zero = zero && value[i] == 0.0f;
    }
    statistics.zero_blocks += zero ? 1 : 0;
    statistics.smallest_scale += !zero && scales[block] == kSmallestScaleCode ? 1 : 0;
  }
  return statistics;
}

}  // namespace

Result<SourceWeight> SourceWeight::read(const Checkpoint& source, const LinearInfo& info) {
  SourceWeight weight;
  weight.info_ = info;
  const bool plain =
      info.format == LinearInfo::Format::Bf16 && info.stored == LinearInfo::Stored::AsFormat;
  if (plain) {
    weight.dtype_ = source.find(info.weight)->dtype;
    weight.bytes_.resize(source.find(info.weight)->size_bytes);
    TRY(source.read(info.weight, weight.bytes_));
    return weight;
  }
  const std::vector<float> values = TRY(source.read_weight(info));
  weight.dtype_ = DType::F32;
  weight.bytes_.resize(values.size() * sizeof(float));
  std::memcpy(weight.bytes_.data(), values.data(), weight.bytes_.size());
  return weight;
}

void SourceWeight::row(int64_t index, std::span<float> out) const {
  const size_t begin = static_cast<size_t>(index * info_.k * size_of(dtype_));
  const std::byte* bytes = bytes_.data() + begin;
  if (dtype_ == DType::F32) {
    std::memcpy(out.data(), bytes, out.size() * sizeof(float));
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
    out[i] = dtype_ == DType::BF16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
}

Result<float> weight_amax(const SourceWeight& weight, ThreadPool& pool) {
  const LinearInfo& info = weight.info();
  std::vector<float> amax(static_cast<size_t>(pool.num_threads()), 0.0f);
  std::vector<int64_t> bad_row(static_cast<size_t>(pool.num_threads()), kNoRow);
  pool.parallel_for(info.n, 1, [&](int64_t begin, int64_t end, int thread) {
    std::vector<float> values(static_cast<size_t>(info.k));
    for (int64_t row = begin; row < end; ++row) {
      weight.row(row, values);
      const auto largest = quant::finite_amax(values);
      if (!largest) {
        int64_t& bad = bad_row[static_cast<size_t>(thread)];
        bad = bad == kNoRow ? row : std::min(bad, row);
        return;
      }
      float& mine = amax[static_cast<size_t>(thread)];
      mine = std::max(mine, *largest);
    }
  });
  int64_t first_bad = kNoRow;
  for (int64_t row : bad_row) {
    if (row != kNoRow) {
      first_bad = first_bad == kNoRow ? row : std::min(first_bad, row);
    }
  }
  if (first_bad != kNoRow) {
    std::vector<float> values(static_cast<size_t>(info.k));
    weight.row(first_bad, values);
    Error error = quant::finite_amax(values).error();
    error.message += " of row " + std::to_string(first_bad);
    error.where = info.weight;
    return tl::unexpected<Error>(std::move(error));
  }
  return *std::max_element(amax.begin(), amax.end());
}

Encoded encode_weight(const SourceWeight& weight,
                      float amax,
                      float global_scale,
                      ThreadPool& pool) {
  const LinearInfo& info = weight.info();
  Encoded result;
  result.matrix.rows = info.n;
  result.matrix.cols = info.k;
  result.matrix.global_scale = global_scale;
  const int64_t code_bytes = info.k / 2;
  const int64_t blocks = info.k / quant::kBlockSize;
  result.matrix.codes.resize(static_cast<size_t>(info.n * code_bytes));
  result.matrix.block_scales.resize(static_cast<size_t>(info.n * blocks));
  std::vector<RowStatistics> rows(static_cast<size_t>(info.n));
  pool.parallel_for(info.n, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    std::vector<float> values(static_cast<size_t>(info.k));
    for (int64_t row = begin; row < end; ++row) {
      weight.row(row, values);
      rows[static_cast<size_t>(row)] = encode_row(values,
                                                  global_scale,
                                                  result.matrix.codes.data() + row * code_bytes,
                                                  result.matrix.block_scales.data() + row * blocks);
    }
  });
  RowStatistics total;
  for (const RowStatistics& row : rows) {
    total.error_squared += row.error_squared;
    total.value_squared += row.value_squared;
    total.max_error = std::max(total.max_error, row.max_error);
    total.zero_blocks += row.zero_blocks;
    total.smallest_scale += row.smallest_scale;
  }
  TensorReport& report = result.report;
  report.module = info.module;
  report.n = info.n;
  report.k = info.k;
  report.amax = amax;
  report.global_scale = global_scale;
  report.relative_error =
      total.value_squared > 0 ? std::sqrt(total.error_squared / total.value_squared) : 0.0;
  report.max_error = total.max_error;
  report.zero_blocks = total.zero_blocks;
  report.smallest_scale = total.smallest_scale;
  return result;
}

}  // namespace nibble::quantize
