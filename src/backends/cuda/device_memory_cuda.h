// Device memory at addresses that outlive it, through the driver's virtual memory functions (asked
// of the runtime library by name: nothing links libcuda). Sizes are rounded up to 2 MiB inside.
#pragma once

#include <cstddef>

#include "tensor/device.h"

namespace nibble::cuda {

void* reserve_range(Device device, size_t size_bytes);
bool map_range(Device device, void* range, size_t size_bytes);
void unmap_range(Device device, void* range, size_t size_bytes) noexcept;
void free_range(Device device, void* range, size_t size_bytes) noexcept;

}  // namespace nibble::cuda
