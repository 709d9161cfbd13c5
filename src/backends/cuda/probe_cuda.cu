// A GPU's limits: streaming reads, wgmma with operands at hand, and what BF16 cuBLAS takes.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/cublas_api.h"
#include "backends/cuda/cuda_check.h"
#include "backends/cuda/device/wgmma.cuh"
#include "backends/cuda/probe_cuda.h"

namespace nibble::cuda {
namespace {

// Read in one kernel, so that its start and end, some 10 us, are a hundredth; less where less is
// free.
constexpr int64_t kMostReadBytes = int64_t{4} << 30;
constexpr int64_t kLeastReadBytes = int64_t{1} << 30;
constexpr int64_t kColdBytes = int64_t{256} << 20;  // several times the L2
constexpr int kPasses = 7;

class Memory {
 public:
  explicit Memory(int64_t bytes) {
    if (cudaMalloc(&data_, static_cast<size_t>(bytes)) != cudaSuccess) {
      (void)cudaGetLastError();
      data_ = nullptr;
    }
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { (void)cudaFree(data_); }
  void* get() const { return data_; }

 private:
  void* data_ = nullptr;
};

/// Median milliseconds of kPasses runs of `work`, after one to warm up.
template <typename Work>
double median_ms(cudaStream_t stream, Work&& work) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i <= kPasses; ++i) {
    CUDA_CHECK(cudaEventRecord(begin, stream));
    work();
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaEventSynchronize(end));
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    if (i > 0) {
      times.push_back(milliseconds);
    }
  }
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

__global__ void __launch_bounds__(512) read_all(const uint4* from, int64_t count, uint4* sink) {
  // Four loads of a thread under way: one at a time reads a tenth less.
  constexpr int kAtOnce = 4;
  uint4 sum = make_uint4(0, 0, 0, 0);
  const auto add = [&sum, from](int64_t i) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from + i));
    sum.x ^= v.x ^ v.y;
    sum.y ^= v.z ^ v.w;
  };
  const int64_t step = static_cast<int64_t>(gridDim.x) * 512;
  int64_t i = static_cast<int64_t>(blockIdx.x) * 512 + threadIdx.x;
  for (; i + (kAtOnce - 1) * step < count; i += kAtOnce * step) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      add(i + j * step);
    }
  }
  for (; i < count; i += step) {
    add(i);
  }
  if ((sum.x ^ sum.y) == 0x12345677u) {
    *sink = sum;
  }
}

/// Values of about unit size, so that a product costs the power it costs in earnest.
__global__ void fill_bf16(__nv_bfloat16* out, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * 256;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x; i < count; i += step) {
    const uint32_t h =
        static_cast<uint32_t>(i) * 2654435761u ^ static_cast<uint32_t>(i >> 7) * 40503u;
    out[i] = __float2bfloat16(static_cast<float>(h >> 8) * (2.0f / 16777216.0f) - 1.0f);
  }
}

constexpr int kProducts = 2048;

__global__ void __launch_bounds__(256, 1) multiply_all(float* sink) {
  extern __shared__ __align__(1024) uint8_t shared[];
  auto* tile = reinterpret_cast<__nv_bfloat16*>(shared);  // 256 x 64
  for (int i = threadIdx.x; i < 256 * 64; i += 256) {
    tile[i] = __float2bfloat16(static_cast<float>((i * 7919) % 255 - 127) / 128.0f);
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  uint32_t a[4];
  for (int i = 0; i < 4; ++i) {
    a[i] = 0x3F803F00u + threadIdx.x * 0x00030005u;
  }
  float acc[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) {
    acc[i] = 0.0f;
  }
  const uint32_t low =
      wgmma_descriptor_low(static_cast<uint32_t>(__cvta_generic_to_shared(shared)));
  wgmma_fence();
#pragma unroll 1
  for (int i = 0; i < kProducts; i += 4) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      WgmmaRs<256>::run(acc, a, wgmma_descriptor(low + 2 * step));
    }
    wgmma_commit();
  }
  wgmma_wait<0>();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 128; ++i) {
    sum += acc[i];
  }
  if (sum == 12345.5f) {
    *sink = sum;
  }
}

int multiprocessors(int device) {
  int count = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

}  // namespace

double measure_read_gbps(CUstream_st* stream, int device) {
  int64_t bytes = kMostReadBytes;
  std::optional<Memory> memory(bytes);
  while (memory->get() == nullptr && bytes > kLeastReadBytes) {
    bytes /= 2;
    memory.emplace(bytes);
  }
  const Memory sink(16);
  if (memory->get() == nullptr || sink.get() == nullptr) {
    return 0;
  }
  CUDA_CHECK(cudaMemsetAsync(memory->get(), 1, static_cast<size_t>(bytes), stream));
  const double milliseconds = median_ms(stream, [&] {
    read_all<<<4 * multiprocessors(device), 512, 0, stream>>>(
        static_cast<const uint4*>(memory->get()), bytes / 16, static_cast<uint4*>(sink.get()));
    CUDA_CHECK(cudaGetLastError());
  });
  return static_cast<double>(bytes) / milliseconds / 1e6;
}

double measure_bf16_gflops(CUstream_st* stream, int device) {
  const Memory sink(16);
  if (sink.get() == nullptr) {
    return 0;
  }
  constexpr int kSharedBytes = 256 * 64 * 2;
  const int blocks = multiprocessors(device);
  const double milliseconds = median_ms(stream, [&] {
    multiply_all<<<blocks, 256, kSharedBytes, stream>>>(static_cast<float*>(sink.get()));
    CUDA_CHECK(cudaGetLastError());
  });
  const double operations = 2.0 * 64 * 256 * 16 * kProducts * 2 * blocks;  // two warpgroups a block
  return operations / milliseconds / 1e6;
}

double measure_cublas_us(CUstream_st* stream, int64_t m, int64_t n, int64_t k) {
  const CublasApi* cublas = cublas_api();
  if (cublas == nullptr) {
    return 0;
  }
  const int64_t copies = std::max<int64_t>(2, kColdBytes / (n * k * 2) + 1);
  const Memory weights(copies * n * k * 2);
  const Memory x(m * k * 2);
  const Memory y(m * n * 2);
  if (weights.get() == nullptr || x.get() == nullptr || y.get() == nullptr) {
    return 0;
  }
  auto* w = static_cast<__nv_bfloat16*>(weights.get());
  fill_bf16<<<1024, 256, 0, stream>>>(w, copies * n * k);
  fill_bf16<<<1024, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(x.get()), m * k);
  CUDA_CHECK(cudaGetLastError());
  const float scalars[2] = {1, 0};
  const Memory alpha_beta(sizeof scalars);
  if (alpha_beta.get() == nullptr || cublas->set_stream(cublas->handle, stream) != 0 ||
      cublas->set_pointer_mode(cublas->handle, kCublasPointerModeDevice) != 0) {
    return 0;
  }
  CUDA_CHECK(
      cudaMemcpyAsync(alpha_beta.get(), scalars, sizeof scalars, cudaMemcpyHostToDevice, stream));
  constexpr int kCalls = 20;
  const auto* one = static_cast<const float*>(alpha_beta.get());
  int64_t call = 0;
  bool ok = true;
  const double milliseconds = median_ms(stream, [&] {
    for (int i = 0; i < kCalls; ++i) {
      ok = ok && cublas->gemm(cublas->handle,
                              kCublasTranspose,
                              kCublasNoTranspose,
                              static_cast<int>(n),
                              static_cast<int>(m),
                              static_cast<int>(k),
                              one,
                              w + (call++ % copies) * n * k,
                              kCudaBf16,
                              static_cast<int>(k),
                              x.get(),
                              kCudaBf16,
                              static_cast<int>(k),
                              one + 1,
                              y.get(),
                              kCudaBf16,
                              static_cast<int>(n),
                              kCublasCompute32F,
                              kCublasDefaultAlgorithm) == 0;
    }
  });
  return ok ? milliseconds * 1e3 / kCalls : 0;
}

}  // namespace nibble::cuda
