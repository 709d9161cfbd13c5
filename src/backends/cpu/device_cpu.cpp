// The CPU as a device: aligned memory, a thread pool behind the stream, copies by memcpy. Work is
// done when a call returns, so synchronize has nothing to wait for.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "base/cpu_info.h"
#include "base/memory_limit.h"
#include "base/memory_nodes.h"
#include "base/thread_pool.h"
#include "tensor/device_api.h"

namespace nibble {

namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kHugePage = size_t{2} << 20;

int num_devices() { return 1; }

size_t physical_bytes() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

void* allocate_host(size_t size_bytes) {
  // Overcommit would hand out more than the machine has and end the process at first use.
  if (size_bytes > physical_bytes()) {
    return nullptr;
  }
  // Weights are read once per token: 2 MiB pages save most of the address translations.
  const bool large = size_bytes >= 2 * kHugePage;
  void* memory = nullptr;
  if (posix_memalign(&memory, large ? kHugePage : kAlignment, size_bytes > 0 ? size_bytes : 1) !=
      0) {
    return nullptr;
  }
  if (large) {
    madvise(memory, size_bytes, MADV_HUGEPAGE);  // a hint: failure only costs speed
  }
  return memory;
}

void* allocate(Device /*device*/, size_t size_bytes) { return allocate_host(size_bytes); }
void release(Device /*device*/, void* memory) noexcept { std::free(memory); }
void release_pinned(void* memory) noexcept { std::free(memory); }

void copy(void* to, const void* from, size_t size_bytes, Stream /*stream*/) {
  if (size_bytes > 0) {
    std::memmove(to, from, size_bytes);
  }
}

void fill_bytes(void* memory, int byte, size_t size_bytes, Stream /*stream*/) {
  if (size_bytes > 0) {
    std::memset(memory, byte, size_bytes);
  }
}

void synchronize(Stream /*stream*/) {}

Stream create_stream(Device device, int num_threads) {
  // Memory belongs to the node of the thread that first writes it, and packing divides weights as
  // products do: with several nodes threads must stay where they are, with one they may move.
  auto pool = std::make_unique<ThreadPool>(num_threads > 0 ? num_threads : num_usable_cpus(),
                                           num_memory_nodes() > 1);
  return {device, pool.release()};  // destroy_stream takes it back
}

void destroy_stream(Stream stream) noexcept {
  std::unique_ptr<ThreadPool>(static_cast<ThreadPool*>(stream.native)).reset();
}

void memory_info(Device /*device*/, size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = 0;
  *total_bytes = 0;
  std::ifstream file("/proc/meminfo");
  std::string key;
  size_t kibibytes = 0;
  std::string unit;
  while (file >> key >> kibibytes) {
    std::getline(file, unit);
    if (key == "MemTotal:") {
      *total_bytes = kibibytes * 1024;
    } else if (key == "MemAvailable:") {
      *free_bytes = kibibytes * 1024;
    }
  }
  if (const auto limit = container_memory()) {  // the machine may have more than we may take
    *free_bytes = std::min<size_t>(*free_bytes, limit->free_bytes);
    *total_bytes = std::min<size_t>(*total_bytes, limit->limit_bytes);
  }
}

int isa(Device /*device*/) { return static_cast<int>(detect_cpu_isa()); }

}  // namespace

extern const DeviceApi kCpuDeviceApi;
const DeviceApi kCpuDeviceApi{
    .kind = Device::Kind::Cpu,
    .num_devices = num_devices,
    .allocate = allocate,
    .release = release,
    .allocate_pinned = allocate_host,
    .release_pinned = release_pinned,
    .copy_to_device = copy,
    .copy_to_host = copy,
    .copy_on_device = copy,
    .fill_bytes = fill_bytes,
    .synchronize = synchronize,
    .create_stream = create_stream,
    .destroy_stream = destroy_stream,
    .memory_info = memory_info,
    .isa = isa,
    .reserve = nullptr,
    .map = nullptr,
    .unmap = nullptr,
    .free_range = nullptr,
    .begin_capture = nullptr,
    .end_capture = nullptr,
    .launch_graph = nullptr,
    .destroy_graph = nullptr,
};

}  // namespace nibble
