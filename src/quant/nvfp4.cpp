#include "quant/nvfp4.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/json.h"
#include "base/number_formats.h"

namespace nibble::quant {

namespace {

constexpr float kMaxProduct = 6.0f * 448.0f;  // E2M1 max times E4M3 max
constexpr float kFourOverSixProduct = 6.0f * 256.0f;
constexpr float kMinBlockScale = 0.001953125f;  // 2^-9, the smallest E4M3 above zero

// The sign bit is set iff the value is below zero, so a tiny negative becomes -0 (code 8) and -0.0
// becomes code 0, as in the reference.
uint8_t encode_value(float scaled, bool negative) {
  const uint8_t magnitude = float_to_e2m1(std::fabs(scaled));
  return static_cast<uint8_t>(magnitude | (negative ? 8 : 0));
}

// Four lanes: every x86-64 has them.
using Four = float __attribute__((vector_size(16)));
using FourInts = int32_t __attribute__((vector_size(16)));
constexpr int64_t kFours = kBlockSize / 4;

Four four(float value) { return Four{value, value, value, value}; }

// What float_to_e2m1() gives for finite x >= 0. Adding and subtracting 1.5 * 2^23 steps rounds to
// whole steps, ties to even; from 1 on the code is the top of the exponent and mantissa.
FourInts e2m1_codes(Four x) {
  const Four a = x < four(6.0f) ? x : four(6.0f);
  const Four magic =
      a < four(2.0f) ? four(6291456.0f) : (a < four(4.0f) ? four(12582912.0f) : four(25165824.0f));
  const Four rounded = (a + magic) - magic;
  FourInts bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  const FourInts small = __builtin_convertvector(rounded * 2.0f, FourInts);
  return rounded < four(1.0f) ? small : (bits >> 22) - 252;
}

struct Candidate {
  uint8_t scale_code = 0;
  float error = 0.0f;
  FourInts codes[kFours];
};

// The block with its maximum at `target`. magnitude: of the 16 values.
Candidate encode_at(const Four* magnitude, float amax, float target, float global_scale) {
  Candidate candidate;
  const float ratio = std::clamp(amax / (target * global_scale), kMinBlockScale, kE4m3Max);
  candidate.scale_code = float_to_e4m3(ratio);
  const float divisor = e4m3_to_float(candidate.scale_code) * global_scale;
  float squares[kBlockSize];
  for (int64_t i = 0; i < kFours; ++i) {
    // A divisor that underflowed to zero only meets blocks of (almost) zeros.
    candidate.codes[i] =
        divisor > 0.0f ? e2m1_codes(magnitude[i] / four(divisor)) : FourInts{0, 0, 0, 0};
    const FourInts code = candidate.codes[i];
    const Four half = __builtin_convertvector(code, Four) * 0.5f;  // of codes 0..4
    const FourInts bits = (code + 252) << 22;
    Four large;
    std::memcpy(&large, &bits, sizeof large);
    const Four value = code < 2 ? half : large;
    const Four difference = magnitude[i] - value * four(divisor);
    const Four square = difference * difference;
    std::memcpy(squares + i * 4, &square, sizeof square);
  }
  for (const float square : squares) {
    candidate.error += square;
  }
  return candidate;
}

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

Nvfp4Matrix empty_matrix(int64_t rows, int64_t cols, float global_scale) {
  CHECK(cols % kBlockSize == 0, "cols must be a multiple of 16, got ", cols);
  CHECK(global_scale > 0.0f, "the global scale must be positive, got ", global_scale);
  Nvfp4Matrix matrix;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.global_scale = global_scale;
  matrix.codes.resize(static_cast<size_t>(rows * cols / 2));
  matrix.block_scales.resize(static_cast<size_t>(rows * cols / kBlockSize));
  return matrix;
}

float global_scale_from_amax(float amax) {
  const float scale = amax / kMaxProduct;
  return scale > 0.0f ? scale : 1.0f;
}

Result<float> finite_amax(std::span<const float> values) {
  float amax = 0.0f;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      return invalid("expected finite values, found " +
                     format_number(static_cast<double>(values[i])) + " at element " +
                     std::to_string(i));
    }
    amax = std::max(amax, std::fabs(values[i]));
  }
  return amax;
}

uint8_t encode_block(const float* values, float global_scale, uint8_t* codes) {
  float amax = 0.0f;
  for (int64_t i = 0; i < kBlockSize; ++i) {
    amax = std::max(amax, std::fabs(values[i]));
  }
  const float denominator = 6.0f * global_scale;
  float ratio = amax / denominator;
  if (ratio == 0.0f) {
    ratio = 1.0f;  // an all-zero block stores 1.0, not 0
  }
  ratio = std::clamp(ratio, kMinBlockScale, kE4m3Max);
  const uint8_t scale_code = float_to_e4m3(ratio);
  const float divisor = e4m3_to_float(scale_code) * global_scale;
  for (int64_t i = 0; i < kBlockSize; i += 2) {
    // A divisor that underflowed to zero only meets blocks of zeros: 0/0 must not reach the codes.
    const float low = divisor > 0.0f ? values[i] / divisor : 0.0f;
    const float high = divisor > 0.0f ? values[i + 1] / divisor : 0.0f;
    codes[i / 2] = static_cast<uint8_t>(encode_value(low, values[i] < 0.0f) |
                                        (encode_value(high, values[i + 1] < 0.0f) << 4));
  }
  return scale_code;
}

float four_over_six_global_scale(float amax) {
  const float scale = amax / kFourOverSixProduct;
  return scale > 0.0f ? scale : 1.0f;
}

uint8_t encode_block_four_over_six(const float* values, float global_scale, uint8_t* codes) {
  Four magnitude[kFours];
  float amax = 0.0f;
  for (int64_t i = 0; i < kBlockSize; ++i) {
    const float value = std::fabs(values[i]);
    magnitude[i / 4][i % 4] = value;
    amax = std::max(amax, value);
  }
  const Candidate at_six = encode_at(magnitude, amax, 6.0f, global_scale);
  const Candidate at_four = encode_at(magnitude, amax, 4.0f, global_scale);
  const Candidate& best = at_four.error < at_six.error ? at_four : at_six;
  for (int64_t i = 0; i < kBlockSize; i += 2) {
    const auto code = [&](int64_t at) {
      const int32_t bits = best.codes[at / 4][at % 4];
      return bits | (bits != 0 && values[at] < 0.0f ? 8 : 0);
    };
    codes[i / 2] = static_cast<uint8_t>(code(i) | (code(i + 1) << 4));
  }
  return best.scale_code;
}

Nvfp4Matrix encode(std::span<const float> values, int64_t rows, int64_t cols, float global_scale) {
  CHECK(static_cast<int64_t>(values.size()) == rows * cols,
        "expected rows * cols values, got ",
        values.size());
  Nvfp4Matrix matrix = empty_matrix(rows, cols, global_scale);
  for (size_t block = 0; block < matrix.block_scales.size(); ++block) {
    matrix.block_scales[block] =
        encode_block(values.data() + block * kBlockSize, global_scale, &matrix.codes[block * 8]);
  }
  return matrix;
}

Nvfp4Matrix encode_four_over_six(std::span<const float> values,
                                 int64_t rows,
                                 int64_t cols,
                                 float global_scale) {
  CHECK(static_cast<int64_t>(values.size()) == rows * cols,
        "expected rows * cols values, got ",
        values.size());
  Nvfp4Matrix matrix = empty_matrix(rows, cols, global_scale);
  for (size_t block = 0; block < matrix.block_scales.size(); ++block) {
    matrix.block_scales[block] = encode_block_four_over_six(
        values.data() + block * kBlockSize, global_scale, &matrix.codes[block * 8]);
  }
  return matrix;
}

void decode(const uint8_t* codes,
            const uint8_t* block_scales,
            float global_scale,
            int64_t rows,
            int64_t cols,
            float* out) {
  CHECK(cols % kBlockSize == 0, "cols must be a multiple of 16, got ", cols);
  const int64_t blocks = rows * cols / kBlockSize;
  for (int64_t block = 0; block < blocks; ++block) {
    const float scale = e4m3_to_float(block_scales[block]);
    float level[16];
    for (int code = 0; code < 16; ++code) {
      level[code] = e2m1_to_float(static_cast<uint8_t>(code)) * scale * global_scale;
    }
    for (int64_t i = 0; i < kBlockSize; i += 2) {
      const uint8_t byte = codes[block * 8 + i / 2];
      out[block * kBlockSize + i] = level[byte & 0xF];
      out[block * kBlockSize + i + 1] = level[byte >> 4];
    }
  }
}

int64_t scale_layout_bytes(ScaleLayout layout, int64_t rows, int64_t blocks) {
  switch (layout) {
    case ScaleLayout::Linear:
      return rows * blocks;
    case ScaleLayout::Tile128x4:
      return round_up(rows, 128) * round_up(blocks, 4);
    case ScaleLayout::Tile8x4:
      return round_up(rows, 8) * round_up(blocks, 4);
  }
  return 0;
}

int64_t scale_offset(ScaleLayout layout, int64_t row, int64_t block, int64_t blocks) {
  const int64_t tiles = (blocks + 3) / 4;
  switch (layout) {
    case ScaleLayout::Linear:
      return row * blocks + block;
    case ScaleLayout::Tile128x4:  // a tile is 32 lines of 16 bytes; a line has rows r, r+32, ...
      return (row / 128 * tiles + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
    case ScaleLayout::Tile8x4:
      return (row / 8 * tiles + block / 4) * 32 + row % 8 * 4 + block % 4;
  }
  return 0;
}

std::vector<uint8_t> to_scale_layout(ScaleLayout layout,
                                     std::span<const uint8_t> linear,
                                     int64_t rows,
                                     int64_t blocks) {
  CHECK(static_cast<int64_t>(linear.size()) == rows * blocks,
        "expected rows * blocks scales, got ",
        linear.size());
  std::vector<uint8_t> tiled(static_cast<size_t>(scale_layout_bytes(layout, rows, blocks)), 0);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t block = 0; block < blocks; ++block) {
      tiled[static_cast<size_t>(scale_offset(layout, row, block, blocks))] =
          linear[static_cast<size_t>(row * blocks + block)];
    }
  }
  return tiled;
}

}  // namespace nibble::quant
