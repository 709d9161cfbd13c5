// The CUDA machine probe: what benchmarks hold kernels against.
#include "backends/cuda/probe_cuda.h"

#include <cuda_runtime_api.h>

#include "ops/probe.h"
#include "tensor/device_api.h"

namespace nibble {

namespace {

CUstream_st* native(Stream stream) { return static_cast<CUstream_st*>(stream.native); }

double read_gbps(Stream stream) {
  return cuda::measure_read_gbps(native(stream), stream.device.index);
}

double peak_gflops(Stream stream, int isa, QuantMode mode) {
  // Every weight format is multiplied as BF16 here; other chips have other instructions.
  const bool bf16 = mode.act == QuantMode::Act::Bf16;
  return isa == 90 && bf16 ? cuda::measure_bf16_gflops(native(stream), stream.device.index) : 0.0;
}

double vendor_bf16_us(Stream stream, int64_t m, int64_t n, int64_t k) {
  return cuda::measure_cublas_us(native(stream), m, n, k);
}

}  // namespace

extern const MachineProbe kCudaProbe;
const MachineProbe kCudaProbe{
    .device = Device::Kind::Cuda,
    .read_gbps = read_gbps,
    .peak_gflops = peak_gflops,
    .vendor_bf16_us = vendor_bf16_us,
};

}  // namespace nibble
