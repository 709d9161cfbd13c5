#include "quantize/large_blocks.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include <gtest/gtest.h>

#include "quantize/square_matrix.h"

namespace nibble::quantize {
namespace {

constexpr size_t kMany = size_t{5} << 20;

TEST(LargeBlocks, HandsOutAgainWhatCameBack) {
  LargeBlocks blocks;
  void* const first = blocks.take(kMany);
  std::memset(first, 1, kMany);
  void* const second = blocks.take(kMany);
  EXPECT_NE(first, second);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  const size_t held = blocks.held_bytes();
  EXPECT_GE(held, 2 * kMany);
  blocks.give(first);
  EXPECT_EQ(blocks.take(kMany - 100), first);
  EXPECT_EQ(blocks.held_bytes(), held);
  blocks.give(first);
  blocks.give(second);
}

TEST(LargeBlocks, ALargeOneDoesNotServeASmallRequest) {
  LargeBlocks blocks;
  void* const large = blocks.take(8 * kMany);
  blocks.give(large);
  void* const small = blocks.take(kMany);
  EXPECT_NE(small, large);
  blocks.give(small);
  EXPECT_GE(blocks.held_bytes(), 9 * kMany);
  blocks.release();
  EXPECT_EQ(blocks.held_bytes(), 0u);
}

TEST(LargeBlocks, ArraysTakeThemAlongWhenTheyMove) {
  LargeBlocks blocks;
  {
    SquareMatrix matrix = SquareMatrix::unset(1024, &blocks);
    const float* const at = matrix.data();
    SquareMatrix other;
    other = std::move(matrix);
    EXPECT_EQ(other.data(), at);
    const size_t held = blocks.held_bytes();
    EXPECT_GT(held, 0u);
    SquareMatrix::unset(64, &blocks);  // too small to be kept
    EXPECT_EQ(blocks.held_bytes(), held);
  }
  blocks.release();
  EXPECT_EQ(blocks.held_bytes(), 0u);
}

TEST(LargeBlocksDeathTest, ABlockComesBackOnceAndToItsOwner) {
  LargeBlocks blocks;
  LargeBlocks others;
  void* const block = blocks.take(kMany);
  EXPECT_DEATH(others.give(block), "not a block of these");
  blocks.give(block);
  EXPECT_DEATH(blocks.give(block), "not a block of these");
}

}  // namespace
}  // namespace nibble::quantize
