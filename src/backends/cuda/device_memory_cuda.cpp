#include "backends/cuda/device_memory_cuda.h"

#include <string>

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "backends/cuda/cuda_check.h"
#include "base/check.h"
#include "base/error.h"

namespace nibble::cuda {

namespace {

// A multiple of the granularity of every device so far.
constexpr size_t kPageBytes = size_t{2} << 20;

size_t rounded(size_t size_bytes) {
  return (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

struct Driver {
  PFN_cuMemAddressReserve_v10020 reserve = nullptr;
  PFN_cuMemAddressFree_v10020 free = nullptr;
  PFN_cuMemCreate_v10020 create = nullptr;
  PFN_cuMemRelease_v10020 release = nullptr;
  PFN_cuMemMap_v10020 map = nullptr;
  PFN_cuMemUnmap_v10020 unmap = nullptr;
  PFN_cuMemSetAccess_v10020 set_access = nullptr;
};

template <typename Function>
void find(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &found, 10020, cudaEnableDefault, &result));
  CHECK(result == cudaDriverEntryPointSuccess, "the driver has no ", name);
  function = reinterpret_cast<Function>(found);
}

const Driver& driver() {
  static const Driver kDriver = [] {
    Driver d;
    find("cuMemAddressReserve", d.reserve);
    find("cuMemAddressFree", d.free);
    find("cuMemCreate", d.create);
    find("cuMemRelease", d.release);
    find("cuMemMap", d.map);
    find("cuMemUnmap", d.unmap);
    find("cuMemSetAccess", d.set_access);
    return d;
  }();
  return kDriver;
}

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    throw SystemError(std::string(what) + " failed: driver error " +
                      std::to_string(static_cast<int>(result)));
  }
}

// The context of the device, which the runtime makes at its first call.
void use(Device device) {
  CUDA_CHECK(cudaSetDevice(device.index));
  CUDA_CHECK(cudaFree(nullptr));
}

}  // namespace

void* reserve_range(Device device, size_t size_bytes) {
  use(device);
  CUdeviceptr range = 0;
  check(driver().reserve(&range, rounded(size_bytes), kPageBytes, 0, 0), "reserving addresses");
  return reinterpret_cast<void*>(range);
}

bool map_range(Device device, void* range, size_t size_bytes) {
  use(device);
  const auto address = reinterpret_cast<CUdeviceptr>(range);
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device.index;
  CUmemGenericAllocationHandle memory = 0;
  const CUresult created = driver().create(&memory, rounded(size_bytes), &properties, 0);
  if (created == CUDA_ERROR_OUT_OF_MEMORY) {
    return false;
  }
  check(created, "allocating device memory");
  const CUresult mapped = driver().map(address, rounded(size_bytes), 0, memory, 0);
  (void)driver().release(memory);  // the mapping keeps it
  check(mapped, "mapping device memory");
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check(driver().set_access(address, rounded(size_bytes), &access, 1),
        "opening device memory for access");
  return true;
}

void unmap_range(Device /*device*/, void* range, size_t size_bytes) noexcept {
  (void)cudaDeviceSynchronize();  // nothing may run on memory that goes away
  (void)driver().unmap(reinterpret_cast<CUdeviceptr>(range), rounded(size_bytes));
}

void free_range(Device /*device*/, void* range, size_t size_bytes) noexcept {
  (void)driver().free(reinterpret_cast<CUdeviceptr>(range), rounded(size_bytes));
}

}  // namespace nibble::cuda
