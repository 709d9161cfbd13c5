// CUDA GPUs as devices. A build with CUDA runs on machines without a driver: num_devices is 0
// there.
#include <span>

#include <cuda_runtime_api.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/device_memory_cuda.h"
#include "base/check.h"
#include "tensor/device_api.h"

namespace nibble {

namespace {

cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.native); }

void use(Device device) { CUDA_CHECK(cudaSetDevice(device.index)); }

int num_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();  // no driver or no device: not an error of later calls
    return 0;
  }
  return count;
}

void* allocate(Device device, size_t size_bytes) {
  use(device);
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, size_bytes > 0 ? size_bytes : 1);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  CUDA_CHECK(error);
  return memory;
}

void release(Device /*device*/, void* memory) noexcept { (void)cudaFree(memory); }

void* allocate_pinned(size_t size_bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(
      &memory, size_bytes > 0 ? size_bytes : 1, cudaHostAllocPortable | cudaHostAllocMapped);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  CUDA_CHECK(error);
  // With unified addressing, which every 64-bit system has, kernels use the host's own pointer.
  void* seen = nullptr;
  CUDA_CHECK(cudaHostGetDevicePointer(&seen, memory, 0));
  CHECK(seen == memory, "kernels see pinned memory at another address than the host");
  return memory;
}

void release_pinned(void* memory) noexcept { (void)cudaFreeHost(memory); }

void copy_to_device(void* to, const void* from, size_t size_bytes, Stream stream) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyHostToDevice, native(stream)));
}

void copy_to_host(void* to, const void* from, size_t size_bytes, Stream stream) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToHost, native(stream)));
}

void copy_on_device(void* to, const void* from, size_t size_bytes, Stream stream) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToDevice, native(stream)));
}

void fill_bytes(void* memory, int byte, size_t size_bytes, Stream stream) {
  CUDA_CHECK(cudaMemsetAsync(memory, byte, size_bytes, native(stream)));
}

void synchronize(Stream stream) { CUDA_CHECK(cudaStreamSynchronize(native(stream))); }

Stream create_stream(Device device, int /*num_threads*/) {
  use(device);
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return {device, stream};
}

void destroy_stream(Stream stream) noexcept { (void)cudaStreamDestroy(native(stream)); }

void memory_info(Device device, size_t* free_bytes, size_t* total_bytes) {
  use(device);
  CUDA_CHECK(cudaMemGetInfo(free_bytes, total_bytes));
}

// Thread-local: other threads may allocate meanwhile.
void begin_capture(Stream stream) {
  CUDA_CHECK(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal));
}

void* end_capture(Stream stream) {
  cudaGraph_t graph = nullptr;
  CUDA_CHECK(cudaStreamEndCapture(native(stream), &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  (void)cudaGraphDestroy(graph);
  CUDA_CHECK(error);
  return executable;
}

void launch_graph(void* graph, Stream stream) {
  CUDA_CHECK(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), native(stream)));
}

void destroy_graph(void* graph) noexcept {
  (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

void* create_event(Device device) {
  use(device);
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void record_event(void* event, Stream stream) {
  CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(event), native(stream)));
}

void wait_event(void* event) { CUDA_CHECK(cudaEventSynchronize(static_cast<cudaEvent_t>(event))); }

void destroy_event(void* event) noexcept {
  (void)cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

int isa(Device device) {
  int major = 0;
  int minor = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index));
  CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index));
  return 10 * major + minor;
}

}  // namespace

extern const DeviceApi kCudaDeviceApi;
const DeviceApi kCudaDeviceApi{
    .kind = Device::Kind::Cuda,
    .num_devices = num_devices,
    .allocate = allocate,
    .release = release,
    .allocate_pinned = allocate_pinned,
    .release_pinned = release_pinned,
    .copy_to_device = copy_to_device,
    .copy_to_host = copy_to_host,
    .copy_on_device = copy_on_device,
    .fill_bytes = fill_bytes,
    .synchronize = synchronize,
    .create_stream = create_stream,
    .destroy_stream = destroy_stream,
    .memory_info = memory_info,
    .isa = isa,
    .reserve = cuda::reserve_range,
    .map = cuda::map_range,
    .unmap = cuda::unmap_range,
    .free_range = cuda::free_range,
    .begin_capture = begin_capture,
    .end_capture = end_capture,
    .launch_graph = launch_graph,
    .destroy_graph = destroy_graph,
    .create_event = create_event,
    .record_event = record_event,
    .wait_event = wait_event,
    .destroy_event = destroy_event,
};

}  // namespace nibble
