// What a device offers to the layers above: memory, streams, copies. A table of functions
// implemented in backends/{cpu,cuda} and looked up by kind; nobody includes a backend header.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/error.h"
#include "tensor/device.h"

namespace nibble {

struct DeviceApi {
  Device::Kind kind;
  // Number of usable devices of this kind; 0 where the driver or the hardware is absent.
  int (*num_devices)();
  // At least 256-byte aligned. nullptr when there is not enough memory: the caller decides whether
  // that is a Result or a SystemError.
  void* (*allocate)(Device device, size_t size_bytes);
  void (*release)(Device device, void* memory) noexcept;
  // Host memory that the device copies from and to at full speed, and that its kernels read and
  // write at the same address.
  void* (*allocate_pinned)(size_t size_bytes);
  void (*release_pinned)(void* memory) noexcept;
  void (*copy_to_device)(void* to, const void* from, size_t size_bytes, Stream stream);
  void (*copy_to_host)(void* to, const void* from, size_t size_bytes, Stream stream);
  void (*copy_on_device)(void* to, const void* from, size_t size_bytes, Stream stream);
  void (*fill_bytes)(void* memory, int byte, size_t size_bytes, Stream stream);
  void (*synchronize)(Stream stream);
  // num_threads: size of the CPU pool; ignored on CUDA.
  Stream (*create_stream)(Device device, int num_threads);
  void (*destroy_stream)(Stream stream) noexcept;
  void (*memory_info)(Device device, size_t* free_bytes, size_t* total_bytes);
  // Level for GemmDesc::isa: a CpuIsa value on the CPU, 10 * major + minor on CUDA.
  int (*isa)(Device device);

  // ---- null where a device has no such thing (the CPU) ----
  // An address range without memory, the memory behind it, and both back again. map: false when
  // there is not enough memory; contents are undefined after it.
  void* (*reserve)(Device device, size_t size_bytes) = nullptr;
  bool (*map)(Device device, void* range, size_t size_bytes) = nullptr;
  void (*unmap)(Device device, void* range, size_t size_bytes) noexcept = nullptr;
  void (*free_range)(Device device, void* range, size_t size_bytes) noexcept = nullptr;
  // What is enqueued between the two becomes a graph instead of running; launching it runs all of
  // it with the same arguments. The graph belongs to the caller.
  void (*begin_capture)(Stream stream) = nullptr;
  void* (*end_capture)(Stream stream) = nullptr;
  void (*launch_graph)(void* graph, Stream stream) = nullptr;
  void (*destroy_graph)(void* graph) noexcept = nullptr;
  // Points of a stream to wait for on the host; recording again moves one. The caller's.
  void* (*create_event)(Device device) = nullptr;
  void (*record_event)(void* event, Stream stream) = nullptr;
  void (*wait_event)(void* event) = nullptr;
  void (*destroy_event)(void* event) noexcept = nullptr;
};

std::span<const DeviceApi* const> device_apis();  // tensor/device_list.cpp
// nullptr when this build has no such device.
const DeviceApi* find_device_api(Device::Kind kind);
// Of a device that start-up has already accepted.
const DeviceApi& device_api(Device device);

// Owns a stream.
class StreamOwner {
 public:
  StreamOwner(Device device, int num_threads);
  StreamOwner(StreamOwner&& other) noexcept;
  StreamOwner& operator=(StreamOwner&& other) noexcept;
  StreamOwner(const StreamOwner&) = delete;
  StreamOwner& operator=(const StreamOwner&) = delete;
  ~StreamOwner();
  Stream get() const { return stream_; }

 private:
  Stream stream_;
};

}  // namespace nibble
