// Where memory lives and where work runs. Device-visible PODs.
#pragma once

#include <cstdint>
#include <string_view>

namespace nibble {

struct Device {
  enum class Kind : uint8_t { Cpu, Cuda };
  Kind kind = Kind::Cpu;
  int16_t index = 0;
  bool operator==(const Device&) const = default;
};

constexpr std::string_view to_string(Device::Kind kind) {
  return kind == Device::Kind::Cpu ? "cpu" : "cuda";
}

// An ordered queue of work on a device. `native` is a ThreadPool* on the CPU (work is done when the
// call returns) and a cudaStream_t on CUDA. A view: the device_api owns what it points to.
struct Stream {
  Device device;
  void* native = nullptr;
};

}  // namespace nibble
