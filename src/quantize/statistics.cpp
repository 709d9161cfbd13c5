#include "quantize/statistics.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/number_formats.h"
#include "quantize/upper_product.h"

namespace nibble::quantize {

namespace {

int64_t num_panels(int64_t width) { return (width + kLanes - 1) / kLanes; }

}  // namespace

StatisticsCollector::StatisticsCollector(int64_t width, bool hessian)
    : width_(width),
      wants_hessian_(hessian),
      magnitude_(static_cast<size_t>(width), 0.0),
      square_(static_cast<size_t>(width), 0.0),
      amax_(static_cast<size_t>(width), 0.0f) {
  CHECK(width % kPanelBlock == 0, "width must be a multiple of 16, got ", width);
}

SquareMatrix& StatisticsCollector::sum(const Compute& compute) {
  if (sum_.empty()) {
    sum_ = SquareMatrix::unset(width_, compute.blocks);
    compute.pool.parallel_for(width_, kPanelBlock, [&](int64_t begin, int64_t end, int /*thread*/) {
      std::fill(sum_.row(begin), sum_.row(begin) + (end - begin) * sum_.stride(), 0.0f);
    });
  }
  return sum_;
}

void StatisticsCollector::add(std::span<const uint16_t* const> rows, const Compute& compute) {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t panels = num_panels(width_);
  const auto floats = static_cast<size_t>(panels * count * kLanes);
  if (panels_.capacity() < floats) {
    panels_ = AlignedFloats(compute.blocks);
  }
  panels_.resize(floats);
  compute.pool.parallel_for(panels, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    for (int64_t p = begin; p < end; ++p) {
      float* out = panels_.data() + p * count * kLanes;
      const int64_t columns = std::min(kLanes, width_ - p * kLanes);
      if (columns < kLanes) {
        std::fill_n(out, count * kLanes, 0.0f);
      }
      for (int64_t t = 0; t < count; ++t) {
        const uint16_t* in = rows[static_cast<size_t>(t)] + p * kLanes;
        for (int64_t lane = 0; lane < columns; ++lane) {
          out[t * kLanes + lane] = bf16_to_float(in[lane]);
        }
      }
      for (int64_t lane = 0; lane < columns; ++lane) {
        const auto column = static_cast<size_t>(p * kLanes + lane);
        double magnitude = 0;
        double square = 0;
        float largest = amax_[column];
        for (int64_t t = 0; t < count; ++t) {
          const float value = std::fabs(out[t * kLanes + lane]);
          magnitude += static_cast<double>(value);
          square += static_cast<double>(value) * static_cast<double>(value);
          largest = std::max(largest, value);
        }
        magnitude_[column] += magnitude;
        square_[column] += square;
        amax_[column] = largest;
      }
    }
  });
  if (wants_hessian_) {
    add_panels(panels_.data(), count, compute);
  } else {
    tokens_ += count;
  }
}

void StatisticsCollector::add_panels(const float* panels, int64_t rows, const Compute& compute) {
  tokens_ += rows;
  add_upper_product({.from = 0,
                     .to = width_,
                     .depth = rows,
                     .a = panels,
                     .b = panels,
                     .panel_stride = rows * kLanes},
                    sum(compute),
                    compute);
}

InputStatistics StatisticsCollector::finish(const Compute& compute) {
  InputStatistics result;
  result.tokens = tokens_;
  const double scale = tokens_ > 0 ? 1.0 / static_cast<double>(tokens_) : 0.0;
  for (size_t i = 0; i < magnitude_.size(); ++i) {
    result.mean_magnitude.push_back(static_cast<float>(magnitude_[i] * scale));
    result.mean_square.push_back(static_cast<float>(square_[i] * scale));
  }
  result.amax = std::move(amax_);
  if (wants_hessian_) {
    SquareMatrix& h = sum(compute);
    // Tiles: the transposed half is written in pieces of whole cache lines.
    compute.pool.parallel_for(width_, kPanelBlock, [&](int64_t begin, int64_t end, int /*thread*/) {
      for (int64_t row = begin; row < end; row += kPanelBlock) {
        for (int64_t column = row; column < width_; column += kPanelBlock) {
          for (int64_t i = row; i < row + kPanelBlock; ++i) {
            for (int64_t j = std::max(i, column); j < column + kPanelBlock; ++j) {
              const auto mean = static_cast<float>(static_cast<double>(h.at(i, j)) * scale);
              h.at(i, j) = mean;
              h.at(j, i) = mean;
            }
          }
        }
      }
    });
    result.hessian = std::move(sum_);
  }
  *this = StatisticsCollector();
  return result;
}

}  // namespace nibble::quantize
