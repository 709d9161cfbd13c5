#include "tensor/device_api.h"

#include <set>
#include <utility>

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(DeviceList, NamesTheCpuFirstAndEveryKindOnce) {
  ASSERT_FALSE(device_apis().empty());
  EXPECT_EQ(device_apis().front()->kind, Device::Kind::Cpu);
  std::set<Device::Kind> kinds;
  for (const DeviceApi* api : device_apis()) {
    EXPECT_TRUE(kinds.insert(api->kind).second);
  }
}

TEST(DeviceList, HasOneCpu) {
  const DeviceApi* api = find_device_api(Device::Kind::Cpu);
  ASSERT_NE(api, nullptr);
  EXPECT_EQ(api->num_devices(), 1);
  EXPECT_EQ(&device_api(Device{Device::Kind::Cpu, 0}), api);
}

TEST(StreamOwner, HandsItsStreamOn) {
  StreamOwner first(Device{Device::Kind::Cpu, 0}, 2);
  void* const native = first.get().native;
  ASSERT_NE(native, nullptr);
  StreamOwner second = std::move(first);
  EXPECT_EQ(second.get().native, native);
  EXPECT_EQ(first.get().native, nullptr);  // NOLINT(bugprone-use-after-move)
  StreamOwner third(Device{Device::Kind::Cpu, 0}, 1);
  third = std::move(second);
  EXPECT_EQ(third.get().native, native);
}

}  // namespace
}  // namespace nibble
