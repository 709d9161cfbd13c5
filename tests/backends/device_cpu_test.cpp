#include <cstdint>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "base/cpu_info.h"
#include "tensor/buffer.h"
#include "tensor/device_api.h"

namespace nibble {
namespace {

TEST(DeviceCpu, AllocatesAlignedMemoryAndReportsWhatItCannotGive) {
  const DeviceApi& api = device_api(Device{});
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{5000}, size_t{9} << 20}) {
    void* memory = api.allocate(Device{}, bytes);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
    std::memset(memory, 1, bytes);
    api.release(Device{}, memory);
  }
  EXPECT_EQ(api.allocate(Device{}, std::numeric_limits<size_t>::max() / 4), nullptr);
}

TEST(DeviceCpu, KnowsItsMemoryAndItsLevel) {
  const DeviceApi& api = device_api(Device{});
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  api.memory_info(Device{}, &free_bytes, &total_bytes);
  EXPECT_GT(free_bytes, 0u);
  EXPECT_GT(total_bytes, free_bytes);
  EXPECT_EQ(api.isa(Device{}), static_cast<int>(detect_cpu_isa()));
  EXPECT_EQ(api.num_devices(), 1);
}

}  // namespace
}  // namespace nibble
