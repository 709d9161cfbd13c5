#pragma once
// What the GPU check and benchmark programs share: random checkpoints on the device, a float64
// reference, errors.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"

namespace nibble::bench {

__device__ __forceinline__ uint32_t hash32(uint64_t v) {
  v ^= v >> 33;
  v *= 0xFF51AFD7ED558CCDull;
  v ^= v >> 33;
  v *= 0xC4CEB9FE1A85EC53ull;
  v ^= v >> 33;
  return static_cast<uint32_t>(v);
}

__global__ void fill_codes(uint8_t* out, int64_t count, uint64_t seed) {
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
    out[i] = static_cast<uint8_t>(hash32(seed + i));
  }
}

/// E4M3 scales. Plain: positive, 2^-6 .. 2^8, as quantizers write. Wild: every finite byte, zeros,
/// subnormals and negative values included.
__global__ void fill_scales(uint8_t* out, int64_t count, uint64_t seed, bool wild) {
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
    const uint32_t h = hash32(seed + i);
    uint8_t byte = static_cast<uint8_t>(0x30 + h % 0x40);
    if (wild) {
      byte = static_cast<uint8_t>(h);
      byte = (byte & 127) == 127 ? 0 : byte;
    }
    out[i] = byte;
  }
}

/// Roughly normal values, variance 1; a few outliers of 16 to 64 where wild.
__global__ void fill_activations(__nv_bfloat16* out, int64_t count, uint64_t seed, bool wild) {
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
    float sum = -6.0f;
    for (int j = 0; j < 12; ++j) {
      sum += static_cast<float>(hash32(seed + i * 12 + j)) * (1.0f / 4294967296.0f);
    }
    if (wild && hash32(seed ^ (i * 77 + 5)) % 500 == 0) {
      sum *= 16.0f;
    }
    out[i] = __float2bfloat16(sum);
  }
}

__host__ __device__ inline double e2m1_value(uint32_t code) {
  const double magnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -magnitudes[code & 7] : magnitudes[code & 7];
}

__host__ __device__ inline double e4m3_value(uint32_t byte) {
  const int exponent = (byte >> 3) & 15;
  const int mantissa = byte & 7;
  double v = exponent == 0 ? ldexp(mantissa / 8.0, -6) : ldexp(1.0 + mantissa / 8.0, exponent - 7);
  if ((byte & 127) == 127) {
    v = NAN;
  }
  return (byte & 128) != 0 ? -v : v;
}

/// out[i] = x[token_i] . w[row_i] * scale_i, one block an output, float64 throughout.
__global__ void reference_kernel(const __nv_bfloat16* x,
                                 int64_t ldx,
                                 const uint8_t* codes,
                                 const uint8_t* scales,
                                 int64_t k,
                                 const float* global_scale,  // [n]
                                 const int2* where,          // row, token
                                 double* out) {
  const int2 at = where[blockIdx.x];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) {
    const uint32_t byte = codes[at.x * (k / 2) + i / 2];
    const uint32_t code = i % 2 == 0 ? byte & 15 : byte >> 4;
    const double w = e2m1_value(code) * e4m3_value(scales[at.x * (k / 16) + i / 16]);
    sum += w * static_cast<double>(__bfloat162float(x[at.y * ldx + i]));
  }
  __shared__ double partial[128];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int step = 64; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      partial[threadIdx.x] += partial[threadIdx.x + step];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    out[blockIdx.x] = partial[0] * static_cast<double>(global_scale[at.x]);
  }
}

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t count) : count_(count) {
    CUDA_CHECK(cudaMalloc(&data_, count * sizeof(T) + 16));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  T* get() const { return data_; }
  int64_t count() const { return count_; }
  std::vector<T> host() const {
    std::vector<T> v(count_);
    CUDA_CHECK(cudaMemcpy(v.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
  }
  void set(const std::vector<T>& v) {
    CUDA_CHECK(cudaMemcpy(data_, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  void poison(int byte) { CUDA_CHECK(cudaMemset(data_, byte, count_ * sizeof(T))); }

 private:
  T* data_ = nullptr;
  int64_t count_;
};

inline float bf16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float v;
  memcpy(&v, &wide, 4);
  return v;
}

}  // namespace nibble::bench
