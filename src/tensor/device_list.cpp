// Every kind of device this build knows, one line each. The objects live in backends/.
#include <array>

#include "tensor/device_api.h"

namespace nibble {

extern const DeviceApi kCpuDeviceApi;
std::span<const DeviceApi* const> cuda_device_apis();  // empty in backends/none

std::span<const DeviceApi* const> device_apis() {
  static const auto kAll = [] {
    std::array<const DeviceApi*, 2> all{&kCpuDeviceApi, nullptr};
    size_t count = 1;
    for (const DeviceApi* api : cuda_device_apis()) {
      all[count++] = api;
    }
    return std::pair(all, count);
  }();
  return std::span(kAll.first).first(kAll.second);
}

}  // namespace nibble
