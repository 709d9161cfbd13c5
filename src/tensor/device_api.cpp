#include "tensor/device_api.h"

#include <utility>

#include "base/check.h"

namespace nibble {

const DeviceApi* find_device_api(Device::Kind kind) {
  for (const DeviceApi* api : device_apis()) {
    if (api->kind == kind) {
      return api;
    }
  }
  return nullptr;
}

const DeviceApi& device_api(Device device) {
  const DeviceApi* api = find_device_api(device.kind);
  CHECK(api != nullptr, "this build has no device of kind ", to_string(device.kind));
  return *api;
}

StreamOwner::StreamOwner(Device device, int num_threads)
    : stream_(device_api(device).create_stream(device, num_threads)) {}

StreamOwner::StreamOwner(StreamOwner&& other) noexcept
    : stream_(std::exchange(other.stream_, Stream{})) {}

StreamOwner& StreamOwner::operator=(StreamOwner&& other) noexcept {
  std::swap(stream_, other.stream_);
  return *this;
}

StreamOwner::~StreamOwner() {
  if (stream_.native != nullptr) {
    device_api(stream_.device).destroy_stream(stream_);
  }
}

}  // namespace nibble
