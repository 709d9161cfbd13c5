#include "tensor/arena.h"

#include <cstdlib>
#include <vector>

#include <gtest/gtest.h>

namespace nibble {
namespace {

// The same code measures and runs, as a model's forward does.
void use_scratch(Arena& arena, std::vector<void*>& seen) {
  const Tensor outer = arena.take(DType::BF16, {3, 5});
  seen.push_back(outer.data);
  for (int layer = 0; layer < 2; ++layer) {
    const Arena::Scope scope(arena);
    seen.push_back(arena.take(DType::F32, {100}).data);
    seen.push_back(arena.take(DType::F32, {7}).data);
  }
}

TEST(Arena, TheMeasuredPeakIsEnoughAndScopesReuseMemory) {
  std::vector<void*> seen;
  Arena measure(Device{});
  use_scratch(measure, seen);
  for (const void* data : seen) {
    EXPECT_EQ(data, nullptr);
  }
  EXPECT_EQ(measure.peak_bytes(), 256u + 512u + 256u);
  seen.clear();
  std::vector<std::byte> memory(measure.peak_bytes());
  Arena arena(memory.data(), memory.size(), Device{});
  use_scratch(arena, seen);
  EXPECT_EQ(seen[1], seen[3]);
  EXPECT_NE(seen[1], seen[2]);
  EXPECT_EQ(arena.peak_bytes(), measure.peak_bytes());
}

TEST(ArenaDeathTest, TakingMoreThanMeasuredIsABug) {
  std::vector<std::byte> memory(256);
  Arena arena(memory.data(), memory.size(), Device{});
  arena.take(DType::U8, {200});
  EXPECT_DEATH(arena.take(DType::U8, {1}), "scratch memory is too small");
}

}  // namespace
}  // namespace nibble
