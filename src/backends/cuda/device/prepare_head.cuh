#pragma once
// What comes between the projection of a layer and its attention, for one head of one token in
// registers: the norm over the head, then half-rotate RoPE. One lane has eight channels, kLanes
// lanes a head. Every kernel that prepares heads calls this, so that their bits agree.

#include <cstdint>

#include "backends/cuda/device/bf16_vector.cuh"
#include "base/number_formats.h"

namespace nibble::cuda {

__device__ __forceinline__ float square_sum(const float (&x)[8]) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    sum = __fmaf_rn(x[j], x[j], sum);
  }
  return sum;
}

// The rotated low and high channel of a pair; contracted by hand, so that kernels agree.
__device__ __forceinline__ float rotate_low(float low, float high, float c, float s) {
  return __fmaf_rn(low, c, -__fmul_rn(high, s));
}
__device__ __forceinline__ float rotate_high(float low, float high, float c, float s) {
  return __fmaf_rn(high, c, __fmul_rn(low, s));
}

/// Angles of a lane's channels.
struct Rotation {
  bool rotated, low;
  int other;  // the lane of the head that has the other half of the pairs
  float cosine[8], sine[8];

  /// `angles`: cosines, then sines of the token's position, `half` each (a multiple of 8).
  __device__ __forceinline__ void load(const float* angles, int half, int lane) {
    const int pieces = half / 8;
    low = lane < pieces;
    rotated = lane < 2 * pieces;
    other = rotated ? (low ? lane + pieces : lane - pieces) : lane;
    const float* mine = angles + (low ? lane * 8 : lane * 8 - half);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      cosine[j] = rotated ? mine[j] : 0.0f;
      sine[j] = rotated ? mine[half + j] : 0.0f;
    }
  }
};

/// Eight weights of a norm from `at` on, bf16 or f32.
__device__ __forceinline__ void load_head_weight(const void* weight,
                                                 bool is_f32,
                                                 int at,
                                                 float (&factor)[8]) {
  if (is_f32) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      factor[j] = static_cast<const float*>(weight)[at + j];
    }
  } else {
    unpack8(*reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(weight) + at),
            factor);
  }
}

/// `raw`: the lane's channels, zeros where it has none. `lanes`: the kLanes lanes of the head, who
/// all call this. `norm`: multiply by `factor` over the root of the mean square.
template <int kLanes>
__device__ __forceinline__ uint4 prepare_head(const uint4& raw,
                                              bool norm,
                                              const float (&factor)[8],
                                              int head_dim,
                                              float eps,
                                              const Rotation& rotation,
                                              unsigned lanes) {
  float x[8];
  uint4 own = raw;
  unpack8(raw, x);
  if (norm) {
    float sum = square_sum(x);
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      sum += __shfl_xor_sync(lanes, sum, step);
    }
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(head_dim) + eps);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x[j] = x[j] * scale * factor[j];
    }
    own = pack8(x);
    unpack8(own, x);
  }
  // The other half of the pairs, two bf16 at a time.
  float y[8];
  unpack8(make_uint4(__shfl_sync(lanes, own.x, rotation.other, kLanes),
                     __shfl_sync(lanes, own.y, rotation.other, kLanes),
                     __shfl_sync(lanes, own.z, rotation.other, kLanes),
                     __shfl_sync(lanes, own.w, rotation.other, kLanes)),
          y);
  if (rotation.rotated) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x[j] = rotation.low ? rotate_low(x[j], y[j], rotation.cosine[j], rotation.sine[j])
                          : rotate_high(y[j], x[j], rotation.cosine[j], rotation.sine[j]);
    }
  }
  return pack8(x);
}

/// Eight bf16 over `scale` as e4m3.
__device__ __forceinline__ uint2 codes_of(const uint4& raw, float scale) {
  float x[8];
  unpack8(raw, x);
  uint32_t codes[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    codes[j / 4] |= static_cast<uint32_t>(float_to_e4m3(__fdiv_rn(x[j], scale))) << (j % 4 * 8);
  }
  return make_uint2(codes[0], codes[1]);
}

}  // namespace nibble::cuda
