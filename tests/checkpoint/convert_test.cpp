#include "checkpoint/convert.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

std::vector<float> through(DType dtype, const std::vector<float>& values) {
  auto there = convert_floats(bytes_of(values), DType::F32, dtype, "t");
  return load_floats(*convert_floats(*there, dtype, DType::F32, "t"));
}

TEST(Convert, RoundsToTheNearestValueOfTheTargetType) {
  EXPECT_THAT(through(DType::F32, {1.0009765625f, -3.0f}), ElementsAre(1.0009765625f, -3.0f));
  EXPECT_THAT(through(DType::BF16, {1.0f, 1.00390625f, -2.5f}), ElementsAre(1.0f, 1.0f, -2.5f));
  EXPECT_THAT(through(DType::F16, {1.0009765625f, 65504.0f}), ElementsAre(1.0009765625f, 65504.0f));
}

TEST(Convert, RefusesTypesThatAreNotFloats) {
  EXPECT_TRUE(convert_floats({std::byte{1}}, DType::U8, DType::U8, "t").has_value());
  EXPECT_THAT(convert_floats({std::byte{1}}, DType::U8, DType::BF16, "a.weight").error().text(),
              HasSubstr("a.weight: expected bf16, found u8"));
  EXPECT_FALSE(convert_floats(bytes_of({1.0f}), DType::F32, DType::E4M3, "t").has_value());
}

}  // namespace
}  // namespace nibble::checkpoint
