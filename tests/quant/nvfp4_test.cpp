#include "quant/nvfp4.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "base/number_formats.h"

namespace nibble::quant {
namespace {

// The worked example: one row of four blocks, BF16-exact values, amax 2.625.
std::vector<float> worked_row() {
  std::vector<float> row;
  for (float sign : {1.0f, -1.0f}) {
    for (float value : {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 6.0f}) {
      row.push_back(sign * value * 0.4375f);
    }
  }
  row.insert(row.end(), 16, 0.0f);
  for (int i = 0; i < 16; ++i) {
    row.push_back(std::ldexp(i % 2 == 0 ? 1.0f : -1.0f, -30));
  }
  for (uint16_t word : std::array<uint16_t, 16>{0x3F80,
                                                0xBF66,
                                                0x3F5C,
                                                0xBF33,
                                                0x3F1A,
                                                0xBF0D,
                                                0x3EDC,
                                                0xBEB3,
                                                0x3E9A,
                                                0xBE61,
                                                0x3E1A,
                                                0xBDCD,
                                                0x3D76,
                                                0xBD24,
                                                0x3C24,
                                                0x0000}) {
    row.push_back(bf16_to_float(word));
  }
  return row;
}

double squared_error(const std::vector<float>& want, const std::vector<float>& got, size_t block) {
  double sum = 0;
  for (size_t i = block * 16; i < block * 16 + 16; ++i) {
    sum += (want[i] - got[i]) * static_cast<double>(want[i] - got[i]);
  }
  return sum;
}

TEST(Nvfp4, EncodesTheWorkedExampleBitForBit) {
  const std::vector<float> row = worked_row();
  const auto amax = finite_amax(row);
  ASSERT_TRUE(amax.has_value());
  EXPECT_EQ(*amax, 2.625f);
  const float global_scale = global_scale_from_amax(*amax);
  EXPECT_EQ(std::bit_cast<uint32_t>(global_scale), 0x3A800000u);
  const Nvfp4Matrix matrix = encode(row, 1, 64, global_scale);
  EXPECT_EQ(matrix.block_scales, (std::vector<uint8_t>{0x7E, 0x38, 0x01, 0x73}));
  EXPECT_EQ(matrix.codes, (std::vector<uint8_t>{0x20, 0x42, 0x64, 0x76, 0xA8, 0xCA, 0xEC, 0xFE,  //
                                                0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,  //
                                                0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,  //
                                                0xF7, 0xE6, 0xD6, 0xC4, 0xB4, 0x92, 0x81, 0x00}));
  std::vector<float> back(64);
  decode(matrix.codes.data(), matrix.block_scales.data(), global_scale, 1, 64, back.data());
  EXPECT_DOUBLE_EQ(squared_error(row, back, 0), 0.669921875);
  EXPECT_EQ(squared_error(row, back, 1), 0.0);
  EXPECT_NEAR(squared_error(row, back, 3), 0.0706668, 1e-7);
}

// The worked example in four-over-six: block 0 takes 4, block 3 takes 6; -0 is written as 0.
TEST(Nvfp4, FourOverSixEncodesTheWorkedExampleBitForBit) {
  const std::vector<float> row = worked_row();
  const float global = four_over_six_global_scale(2.625f);
  EXPECT_EQ(std::bit_cast<uint32_t>(global), 0x3AE00000u);
  std::array<uint8_t, 8> codes{};
  EXPECT_EQ(encode_block_four_over_six(row.data(), global, codes.data()), 0x7C);
  EXPECT_EQ(codes, (std::array<uint8_t, 8>{0x10, 0x22, 0x43, 0x65, 0x90, 0xAA, 0xCB, 0xED}));
  EXPECT_EQ(encode_block_four_over_six(row.data() + 48, global, codes.data()), 0x6C);
  EXPECT_EQ(codes, (std::array<uint8_t, 8>{0xF7, 0xE7, 0xD6, 0xC5, 0xB4, 0x92, 0x01, 0x00}));
}

TEST(Nvfp4, FourOverSixGivesZerosTheSmallestScaleAndNoMinusZero) {
  const std::vector<float> row = worked_row();
  std::array<uint8_t, 8> codes{};
  codes.fill(0xFF);
  EXPECT_EQ(encode_block_four_over_six(row.data() + 16, 0.5f, codes.data()), 1);
  EXPECT_EQ(codes, (std::array<uint8_t, 8>{}));
  codes.fill(0xFF);  // values that underflow, half of them negative
  EXPECT_EQ(encode_block_four_over_six(row.data() + 32, 0.5f, codes.data()), 1);
  EXPECT_EQ(codes, (std::array<uint8_t, 8>{}));
}

// The same choice from the scalar conversions, value by value.
uint8_t plain_four_over_six(const float* values, float global, std::array<uint8_t, 8>& codes) {
  float amax = 0;
  for (int i = 0; i < 16; ++i) {
    amax = std::max(amax, std::fabs(values[i]));
  }
  uint8_t best = 0;
  float best_error = 0;
  for (const float target : {6.0f, 4.0f}) {
    const float ratio = std::clamp(amax / (target * global), 0.001953125f, 448.0f);
    const uint8_t scale = float_to_e4m3(ratio);
    const float divisor = e4m3_to_float(scale) * global;
    std::array<uint8_t, 16> candidate{};
    float error = 0;
    for (size_t i = 0; i < 16; ++i) {
      const float magnitude = std::fabs(values[i]);
      candidate[i] = divisor > 0 ? float_to_e2m1(magnitude / divisor) : uint8_t{0};
      const float rest = magnitude - e2m1_to_float(candidate[i]) * divisor;
      error += rest * rest;
      if (candidate[i] != 0 && values[i] < 0) {
        candidate[i] = static_cast<uint8_t>(candidate[i] | 8);
      }
    }
    if (best == 0 || error < best_error) {
      best = scale;
      best_error = error;
      for (size_t i = 0; i < 8; ++i) {
        codes[i] = static_cast<uint8_t>(candidate[2 * i] | candidate[2 * i + 1] << 4);
      }
    }
  }
  return best;
}

TEST(Nvfp4, FourOverSixIsWhatTheScalarConversionsGive) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> eighths(-64, 64);
  for (int trial = 0; trial < 20000; ++trial) {
    std::array<float, 16> values{};
    const float size = std::ldexp(1.0f, -(trial % 40));
    for (float& value : values) {
      // Every other block lies on and between the levels: ties.
      value = size * (trial % 2 == 0 ? normal(random) : static_cast<float>(eighths(random)) / 8.0f);
    }
    const float global = trial % 3 == 0 ? four_over_six_global_scale(size * 4.0f) : 0.0009765625f;
    std::array<uint8_t, 8> expected{};
    std::array<uint8_t, 8> codes{};
    const uint8_t scale = plain_four_over_six(values.data(), global, expected);
    ASSERT_EQ(encode_block_four_over_six(values.data(), global, codes.data()), scale) << trial;
    ASSERT_EQ(codes, expected) << trial;
  }
}

TEST(Nvfp4, FourOverSixKeepsTheBetterOfItsTwoScales) {
  const std::vector<float> row = worked_row();
  const float global = four_over_six_global_scale(2.625f);
  for (const size_t block : {size_t{0}, size_t{48}}) {
    const float* values = row.data() + block;
    std::array<uint8_t, 8> codes{};
    const uint8_t chosen = encode_block_four_over_six(values, global, codes.data());
    const auto error_with = [&](float scale) {
      float sum = 0;
      for (int i = 0; i < 16; ++i) {
        const float s = scale * global;
        const float a = std::fabs(values[i]);
        const float e = a - e2m1_to_float(float_to_e2m1(a / s)) * s;
        sum += e * e;
      }
      return sum;
    };
    float amax = 0;
    for (int i = 0; i < 16; ++i) {
      amax = std::max(amax, std::fabs(values[i]));
    }
    const float six = e4m3_to_float(float_to_e4m3(amax / (6.0f * global)));
    const float four = e4m3_to_float(float_to_e4m3(amax / (4.0f * global)));
    EXPECT_NE(error_with(six), error_with(four));
    EXPECT_EQ(e4m3_to_float(chosen), error_with(four) < error_with(six) ? four : six);
  }
}

TEST(Nvfp4, SwappedNibblesDoNotDecodeToTheSameValues) {
  const std::vector<float> row = worked_row();
  Nvfp4Matrix matrix = encode(row, 1, 64, global_scale_from_amax(2.625f));
  for (uint8_t& byte : matrix.codes) {
    byte = static_cast<uint8_t>((byte >> 4) | (byte << 4));
  }
  std::vector<float> back(64);
  decode(matrix.codes.data(), matrix.block_scales.data(), matrix.global_scale, 1, 64, back.data());
  EXPECT_GT(squared_error(row, back, 0), 1.0);
}

TEST(Nvfp4, AnAllZeroTensorGetsGlobalScaleOneAndZeroCodes) {
  const std::vector<float> zeros(32, 0.0f);
  const float global_scale = global_scale_from_amax(0.0f);
  EXPECT_EQ(global_scale, 1.0f);
  const Nvfp4Matrix matrix = encode(zeros, 2, 16, global_scale);
  EXPECT_EQ(matrix.codes, std::vector<uint8_t>(16, 0));
  EXPECT_EQ(matrix.block_scales, std::vector<uint8_t>(2, 0x38));
}

TEST(Nvfp4, MinusZeroLosesItsSignAndATinyNegativeKeepsIt) {
  std::array<float, 16> block{};
  block[0] = 6.0f;
  block[1] = -0.0f;
  block[2] = -0.01f;
  std::array<uint8_t, 8> codes{};
  EXPECT_EQ(encode_block(block.data(), 1.0f, codes.data()), 0x38);
  EXPECT_EQ(codes[0], 0x07);
  EXPECT_EQ(codes[1], 0x08);
}

TEST(Nvfp4, EveryCodeTimesEveryScaleSurvivesARoundTrip) {
  for (int scale_code = 1; scale_code <= 0x7E; ++scale_code) {
    const float scale = e4m3_to_float(static_cast<uint8_t>(scale_code));
    std::array<float, 16> block{};
    for (uint8_t code = 0; code < 16; ++code) {
      block[code] = e2m1_to_float(code) * scale;
      EXPECT_EQ(bf16_to_float(float_to_bf16(block[code])), block[code]) << "not exact in bf16";
    }
    std::array<uint8_t, 8> codes{};
    EXPECT_EQ(encode_block(block.data(), 1.0f, codes.data()), scale_code);
    EXPECT_EQ(codes, (std::array<uint8_t, 8>{0x10, 0x32, 0x54, 0x76, 0x90, 0xBA, 0xDC, 0xFE}));
  }
}

TEST(Nvfp4, ValuesThatAreNotFiniteAreRefusedWithTheirPlace) {
  std::vector<float> values(20, 1.0f);
  values[17] = std::numeric_limits<float>::infinity();
  auto amax = finite_amax(values);
  ASSERT_FALSE(amax.has_value());
  EXPECT_NE(amax.error().message.find("17"), std::string::npos);
  for (const float sign : {1.0f, -1.0f}) {
    values[17] = std::copysign(std::numeric_limits<float>::quiet_NaN(), sign);
    EXPECT_EQ(finite_amax(values).error().message,
              "expected finite values, found NaN at element 17");
  }
  values[17] = -3.0f;
  EXPECT_EQ(finite_amax(values).value(), 3.0f);
}

// Check values of the layout that Blackwell's tensor cores read (PTX ISA, tcgen05 scale factors).
TEST(ScaleLayout, TiledOffsetsMatchTheCheckValues) {
  struct Row {
    int64_t row, block, blocks, tile128x4, tile8x4;
  };
  for (const Row& want : {Row{1, 0, 8, 16, 4},
                          Row{31, 3, 8, 499, 223},
                          Row{32, 0, 8, 4, 256},
                          Row{127, 7, 8, 1023, 1023},
                          Row{128, 0, 8, 1024, 1024},
                          Row{200, 5, 8, 1673, 1633},
                          Row{5, 6, 7, 594, 54},
                          Row{129, 6, 7, 1554, 1062}}) {
    EXPECT_EQ(scale_offset(ScaleLayout::Tile128x4, want.row, want.block, want.blocks),
              want.tile128x4);
    EXPECT_EQ(scale_offset(ScaleLayout::Tile8x4, want.row, want.block, want.blocks), want.tile8x4);
  }
}

TEST(ScaleLayout, TiledLayoutsAreBijectionsOnThePaddedSize) {
  for (ScaleLayout layout : {ScaleLayout::Tile128x4, ScaleLayout::Tile8x4}) {
    const int64_t padded_rows = layout == ScaleLayout::Tile128x4 ? 256 : 136;
    std::set<int64_t> seen;
    for (int64_t row = 0; row < padded_rows; ++row) {
      for (int64_t block = 0; block < 8; ++block) {
        seen.insert(scale_offset(layout, row, block, 7));
      }
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), padded_rows * 8);
    EXPECT_EQ(*seen.rbegin(), padded_rows * 8 - 1);
    EXPECT_EQ(scale_layout_bytes(layout, padded_rows - 1, 7), padded_rows * 8);
  }
}

TEST(ScaleLayout, PaddingIsZeroAndEveryScaleIsMoved) {
  std::vector<uint8_t> linear(3 * 5);
  for (size_t i = 0; i < linear.size(); ++i) {
    linear[i] = static_cast<uint8_t>(i + 1);
  }
  const auto tiled = to_scale_layout(ScaleLayout::Tile8x4, linear, 3, 5);
  ASSERT_EQ(tiled.size(), 64u);
  int sum = 0;
  for (uint8_t value : tiled) {
    sum += value;
  }
  EXPECT_EQ(sum, 15 * 16 / 2);
  EXPECT_EQ(tiled[static_cast<size_t>(scale_offset(ScaleLayout::Tile8x4, 2, 4, 5))], 15);
  EXPECT_EQ(to_scale_layout(ScaleLayout::Linear, linear, 3, 5), linear);
}

}  // namespace
}  // namespace nibble::quant
