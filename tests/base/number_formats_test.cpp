#include "base/number_formats.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace nibble {
namespace {

// Reference: nearest of all finite codes by exhaustive search in double, ties to the even code.
template <typename Decode>
uint8_t nearest_code(double value, int max_code, Decode decode) {
  uint8_t best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code <= max_code; ++code) {
    const double distance = std::fabs(std::fabs(value) - decode(static_cast<uint8_t>(code)));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = static_cast<uint8_t>(code);
      best_distance = distance;
    }
  }
  return best;
}

TEST(NumberFormats, E2m1DecodesTheSixteenCodes) {
  const float expected[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (int code = 0; code < 16; ++code) {
    const float value = e2m1_to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(std::fabs(value), expected[code & 7]);
    EXPECT_EQ(std::signbit(value), code >= 8);
    EXPECT_EQ(float_to_e2m1(value), code);
  }
}

TEST(NumberFormats, E2m1RoundsToNearestTiesToEven) {
  for (int step = 0; step <= 8 * 64; ++step) {
    const float value = static_cast<float>(step) / 64.0f;
    EXPECT_EQ(float_to_e2m1(value), nearest_code(value, 7, e2m1_to_float)) << value;
    EXPECT_EQ(float_to_e2m1(-value), 8 | nearest_code(value, 7, e2m1_to_float)) << value;
    for (float near : {std::nextafter(value, 0.0f), std::nextafter(value, 9.0f)}) {
      EXPECT_EQ(float_to_e2m1(near), nearest_code(near, 7, e2m1_to_float)) << near;
    }
  }
  EXPECT_EQ(float_to_e2m1(1e30f), 7);
  EXPECT_EQ(float_to_e2m1(-std::numeric_limits<float>::infinity()), 15);
  EXPECT_EQ(float_to_e2m1(std::numeric_limits<float>::quiet_NaN()), 7);
}

TEST(NumberFormats, E4m3RoundTripsEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value));
    }
    EXPECT_EQ(float_to_e4m3(value), code);
  }
  EXPECT_EQ(e4m3_to_float(0x7E), 448.0f);
  EXPECT_EQ(e4m3_to_float(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(e4m3_to_float(0x08), std::ldexp(1.0f, -6));
}

TEST(NumberFormats, E4m3RoundsToNearestTiesToEvenAtEveryMidpoint) {
  for (int code = 0; code < 0x7E; ++code) {
    const float low = e4m3_to_float(static_cast<uint8_t>(code));
    const float high = e4m3_to_float(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(float_to_e4m3(middle), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, 0.0f)), code) << code;
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, 1e9f)), code + 1) << code;
  }
  EXPECT_EQ(float_to_e4m3(1e9f), 0x7E);
  EXPECT_EQ(float_to_e4m3(-std::numeric_limits<float>::infinity()), 0xFE);
}

TEST(NumberFormats, Bf16RoundTripsEveryCodeAndRoundsTiesToEven) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    const float value = bf16_to_float(bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value))));
      continue;
    }
    EXPECT_EQ(float_to_bf16(value), bits);
    if ((code & 0x7FFF) < 0x7F7F) {
      const float middle = std::bit_cast<float>((code << 16) | 0x8000u);
      EXPECT_EQ(float_to_bf16(middle), code % 2 == 0 ? code : code + 1);
    }
  }
}

TEST(NumberFormats, F16MatchesTheCompilersHalfTypeOnEveryCodeAndNeighbour) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    const auto native = static_cast<float>(std::bit_cast<_Float16>(bits));
    const float value = f16_to_float(bits);
    if (std::isnan(native)) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    EXPECT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(native));
    for (float near : {value, value * 1.0003f, value * 1.00048828125f, value * 0.9998f}) {
      EXPECT_EQ(float_to_f16(near), std::bit_cast<uint16_t>(static_cast<_Float16>(near))) << near;
    }
  }
}

TEST(NumberFormats, E8m0IsAPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(e8m0_to_float(static_cast<uint8_t>(code)), std::ldexp(1.0f, code - 127));
  }
  EXPECT_TRUE(std::isnan(e8m0_to_float(0xFF)));
}

}  // namespace
}  // namespace nibble
