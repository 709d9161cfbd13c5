#include "tensor/pinned_memory.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(PinnedMemory, IsAlignedMemoryThatMovesWithItsOwner) {
  auto memory = PinnedMemory::allocate("test", 1000, Device{});
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->data()) % 64, 0u);
  std::memset(memory->data(), 7, 1000);
  PinnedMemory moved = std::move(*memory);
  EXPECT_EQ(moved.size_bytes(), 1000u);
  EXPECT_EQ(moved.data()[999], std::byte{7});
  EXPECT_EQ(memory->data(), nullptr);  // NOLINT(bugprone-use-after-move): what is left is empty
}

TEST(PinnedMemory, SaysWhatThereWasNoRoomFor) {
  const size_t huge = std::numeric_limits<size_t>::max() / 4;
  const auto memory = PinnedMemory::allocate("copies", huge, Device{});
  ASSERT_FALSE(memory.has_value());
  EXPECT_EQ(memory.error().code, ErrorCode::Overloaded);
  EXPECT_EQ(memory.error().where, "copies");
}

}  // namespace
}  // namespace nibble
