// How fast one SM can be fed with plain bulk copies, by size, copies a stage and issuing warps. Why
// the producers of nvfp4_w4a16_sm90 bring whole stages with one copy each (docs/benchmarks.md).
#include <algorithm>
#include <cstdint>
#include <cstdio>

#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/device/ptx.cuh"

namespace nibble::bench {
namespace {

using namespace nibble::cuda;

struct Params {
  const uint8_t* data;
  int64_t region;   // bytes that a block walks through, then wraps
  int64_t spacing;  // between the starts of blocks
  int bytes;        // of a copy
  int copies;       // a stage
  int stages;
  int issuers;  // warps
  int iterations;
};

__global__ void __launch_bounds__(160) feed(const Params p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = shared_address(shared);
  const uint32_t stage_bytes = p.copies * p.bytes;
  const uint32_t full = base + p.stages * stage_bytes;
  const uint32_t empty = full + p.stages * 8;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      barrier_init(full + i * 8, p.issuers);
      barrier_init(empty + i * 8, 1);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x % 32 != 0 || (warp >= p.issuers && warp != 4)) {
    return;
  }
  const uint8_t* from = p.data + blockIdx.x * p.spacing;
  const int each = p.copies / p.issuers;
  int64_t at = 0;
  int stage = 0;
  int parity = 0;
  for (int i = 0; i < p.iterations; ++i) {
    if (warp < p.issuers) {
      barrier_wait(empty + stage * 8, parity ^ 1);
      barrier_expect_bytes(full + stage * 8, each * p.bytes);
      for (int j = warp * each; j < (warp + 1) * each; ++j) {
        bulk_copy(base + stage * stage_bytes + j * p.bytes,
                  from + at + j * p.bytes,
                  p.bytes,
                  full + stage * 8,
                  kEvictNormal);
      }
      at += stage_bytes;
      at = at + stage_bytes > p.region ? 0 : at;
    } else {
      barrier_wait(full + stage * 8, parity);
      barrier_arrive(empty + stage * 8);
    }
    if (++stage == p.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

void run(const uint8_t* data,
         int64_t total,
         bool dram,
         int blocks_per_sm,
         int bytes,
         int copies,
         int issuers) {
  Params p{};
  p.data = data;
  p.bytes = bytes;
  p.copies = copies;
  p.stages = 5;
  p.issuers = issuers;
  const int blocks = 132 * blocks_per_sm;
  const int64_t stage_bytes = static_cast<int64_t>(copies) * bytes;
  p.region = (dram ? total : 16 << 20) / blocks / 4096 * 4096;
  p.region = std::max(p.region, stage_bytes);
  p.spacing = dram ? p.region : p.region / 16 * 16;
  p.iterations = static_cast<int>(dram ? p.region / stage_bytes : 40000000 / stage_bytes);
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  float best = 1e30F;
  for (int i = 0; i < 5; ++i) {
    CUDA_CHECK(cudaEventRecord(begin));
    feed<<<blocks, 160, p.stages * stage_bytes + p.stages * 16>>>(p);
    CUDA_CHECK(cudaEventRecord(end));
    CUDA_CHECK(cudaEventSynchronize(end));
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    best = std::min(best, milliseconds);
  }
  const double moved =
      static_cast<double>(blocks) * p.iterations * static_cast<double>(stage_bytes);
  std::printf(
      "%s, %d blocks an SM, %5d bytes, %d copies a stage, %d issuing warps: %5.2f TB/s, %6.1f ns a "
      "copy and SM\n",
      dram ? "DRAM" : "L2  ",
      blocks_per_sm,
      bytes,
      copies,
      issuers,
      moved / best / 1e9,
      best * 1e6 / (static_cast<double>(p.iterations) * copies * blocks_per_sm));
}

}  // namespace
}  // namespace nibble::bench

int main() {
  using nibble::bench::run;
  try {
    uint8_t* data = nullptr;
    const int64_t total = int64_t{4} << 30;
    CUDA_CHECK(cudaMalloc(&data, total));
    CUDA_CHECK(cudaMemset(data, 1, total));
    CUDA_CHECK(cudaFuncSetAttribute(
        nibble::bench::feed, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 * 1024));
    for (const int bytes : {2304, 4608, 9216}) {
      for (const int issuers : {1, 2, 4}) {
        run(data, total, false, 1, bytes, 4, issuers);
      }
      run(data, total, true, 1, bytes, 2, 1);
      run(data, total, true, 2, bytes, 2, 1);
    }
    run(data, total, true, 1, 18432, 2, 1);
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
  return 0;
}
