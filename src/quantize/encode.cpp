#include "quantize/encode.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
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
  std::array<int64_t, 16> exponents{};
};

void encode_row(Method method,
                std::span<const float> values,
                float global_scale,
                uint8_t* codes,
                uint8_t* scales) {
  const auto blocks = static_cast<int64_t>(values.size()) / quant::kBlockSize;
  for (int64_t block = 0; block < blocks; ++block) {
    const float* value = values.data() + block * quant::kBlockSize;
    uint8_t* code = codes + block * quant::kBlockSize / 2;
    scales[block] = method == Method::Max
                        ? quant::encode_block(value, global_scale, code)
                        : quant::encode_block_four_over_six(value, global_scale, code);
  }
}

RowStatistics measure_row(std::span<const float> values,
                          float global_scale,
                          const uint8_t* codes,
                          const uint8_t* scales) {
  // Four sums side by side: one would wait for each addition.
  constexpr int64_t kSums = 4;
  double error_squared[kSums] = {};
  double value_squared[kSums] = {};
  float max_error[kSums] = {};
  RowStatistics statistics;
  float decoded[quant::kBlockSize];
  const auto blocks = static_cast<int64_t>(values.size()) / quant::kBlockSize;
  for (int64_t block = 0; block < blocks; ++block) {
    const float* value = values.data() + block * quant::kBlockSize;
    quant::decode(codes + block * quant::kBlockSize / 2,
                  scales + block,
                  global_scale,
                  1,
                  quant::kBlockSize,
                  decoded);
    float largest = 0.0f;
    for (int64_t i = 0; i < quant::kBlockSize; i += kSums) {
      for (int64_t j = 0; j < kSums; ++j) {
        const float error = std::fabs(value[i + j] - decoded[i + j]);
        error_squared[j] += static_cast<double>(error) * static_cast<double>(error);
        value_squared[j] += static_cast<double>(value[i + j]) * static_cast<double>(value[i + j]);
        max_error[j] = std::max(max_error[j], error);
        largest = std::max(largest, std::fabs(value[i + j]));
      }
    }
    statistics.zero_blocks += largest == 0.0f ? 1 : 0;
    statistics.smallest_scale += largest != 0.0f && scales[block] == kSmallestScaleCode ? 1 : 0;
    ++statistics.exponents[scales[block] >> 3];
  }
  for (int64_t j = 0; j < kSums; ++j) {
    statistics.error_squared += error_squared[j];
    statistics.value_squared += value_squared[j];
    statistics.max_error = std::max(statistics.max_error, static_cast<double>(max_error[j]));
  }
  return statistics;
}

TensorReport report_from(const LinearInfo& info,
                         float amax,
                         float global_scale,
                         const std::vector<RowStatistics>& rows) {
  RowStatistics total;
  for (const RowStatistics& row : rows) {
    total.error_squared += row.error_squared;
    total.value_squared += row.value_squared;
    total.max_error = std::max(total.max_error, row.max_error);
    total.zero_blocks += row.zero_blocks;
    total.smallest_scale += row.smallest_scale;
    for (size_t i = 0; i < total.exponents.size(); ++i) {
      total.exponents[i] += row.exponents[i];
    }
  }
  TensorReport report;
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
  report.scale_exponents = total.exponents;
  return report;
}

}  // namespace

Result<SourceWeight> SourceWeight::read(const Checkpoint& source,
                                        const LinearInfo& info,
                                        LargeBlocks* blocks) {
  SourceWeight weight;
  weight.info_ = info;
  weight.bytes_ = AlignedBytes(blocks);
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
  if (dtype_ == DType::BF16) {
    for (size_t i = 0; i < out.size(); ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
      out[i] = std::bit_cast<float>(uint32_t{bits} << 16);
    }
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
    out[i] = f16_to_float(bits);
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

float global_scale_of(Method method, float amax) {
  return method == Method::FourOverSix ? quant::four_over_six_global_scale(amax)
                                       : quant::global_scale_from_amax(amax);
}

void SourceWeight::widen(ThreadPool& pool) {
  if (dtype_ == DType::F32) {
    return;
  }
  AlignedBytes wide(static_cast<size_t>(info_.n * info_.k) * sizeof(float), bytes_.get_allocator());
  auto* const out = reinterpret_cast<float*>(wide.data());
  pool.parallel_for(info_.n, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    for (int64_t i = begin; i < end; ++i) {
      row(i, std::span(out + i * info_.k, static_cast<size_t>(info_.k)));
    }
  });
  bytes_ = std::move(wide);
  dtype_ = DType::F32;
}

std::span<float> SourceWeight::values() {
  CHECK(dtype_ == DType::F32, "values of a weight that is not widened: ", info_.weight);
  return {reinterpret_cast<float*>(bytes_.data()), static_cast<size_t>(info_.n * info_.k)};
}

std::span<const float> SourceWeight::values() const {
  CHECK(dtype_ == DType::F32, "values of a weight that is not widened: ", info_.weight);
  return {reinterpret_cast<const float*>(bytes_.data()), static_cast<size_t>(info_.n * info_.k)};
}

Encoded encode_weight(
    const SourceWeight& weight, Method method, float amax, float global_scale, ThreadPool& pool) {
  const LinearInfo& info = weight.info();
  Encoded result;
  result.matrix = quant::empty_matrix(info.n, info.k, global_scale);
  std::vector<RowStatistics> rows(static_cast<size_t>(info.n));
  pool.parallel_for(info.n, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    std::vector<float> values(static_cast<size_t>(info.k));
    for (int64_t row = begin; row < end; ++row) {
      uint8_t* codes = result.matrix.codes.data() + row * info.k / 2;
      uint8_t* scales = result.matrix.block_scales.data() + row * info.k / quant::kBlockSize;
      weight.row(row, values);
      encode_row(method, values, global_scale, codes, scales);
      rows[static_cast<size_t>(row)] = measure_row(values, global_scale, codes, scales);
    }
  });
  result.report = report_from(info, amax, global_scale, rows);
  result.report.method = method;
  return result;
}

TensorReport report_of(const SourceWeight& weight,
                       float amax,
                       const quant::Nvfp4Matrix& matrix,
                       ThreadPool& pool) {
  const LinearInfo& info = weight.info();
  std::vector<RowStatistics> rows(static_cast<size_t>(info.n));
  pool.parallel_for(info.n, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    std::vector<float> values(static_cast<size_t>(info.k));
    for (int64_t row = begin; row < end; ++row) {
      weight.row(row, values);
      rows[static_cast<size_t>(row)] =
          measure_row(values,
                      matrix.global_scale,
                      matrix.codes.data() + row * info.k / 2,
                      matrix.block_scales.data() + row * info.k / quant::kBlockSize);
    }
  });
  return report_from(info, amax, matrix.global_scale, rows);
}

}  // namespace nibble::quantize
