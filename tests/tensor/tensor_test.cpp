#include "tensor/tensor.h"

#include <array>

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(Tensor, ViewsKnowSizesStridesAndRows) {
  std::array<float, 12> memory{};
  const Tensor tensor(memory.data(), DType::F32, {3, 4}, {});
  EXPECT_EQ(tensor.num_elements(), 12);
  EXPECT_EQ(tensor.size_bytes(), 48);
  EXPECT_TRUE(tensor.contiguous());
  const Tensor part = tensor.rows(1, 3);
  EXPECT_EQ(part.as<float>(), memory.data() + 4);
  EXPECT_EQ(part.shape, (Shape{2, 4}));
  EXPECT_EQ(tensor.reshaped({2, 6}).stride, (Shape{6, 1}));
  EXPECT_EQ(describe(tensor), "[3, 4] f32");
}

TEST(TensorDeathTest, WrongTypesRangesAndReshapesAreBugs) {
  std::array<float, 12> memory{};
  const Tensor tensor(memory.data(), DType::F32, {3, 4}, {});
  EXPECT_DEATH(tensor.as<uint16_t>(), "another type than it stores: f32");
  EXPECT_DEATH(tensor.rows(2, 4), "row range out of bounds");
  EXPECT_DEATH(tensor.reshaped({5, 2}), "reshape needs");
}

TEST(Tensor, EveryDtypeHasASizeAndAName) {
  EXPECT_EQ(size_of(DType::BF16), 2);
  EXPECT_EQ(size_of(DType::E2M1x2), 1);
  EXPECT_EQ(size_of(DType::I64), 8);
  EXPECT_EQ(to_string(DType::E4M3), "f8_e4m3");
}

}  // namespace
}  // namespace nibble
