#pragma once
// Eight bf16 at a time: 16 bytes of memory to and from eight floats, and the same with bounds for
// rows that are not made of aligned 16-byte pieces. Both forms do the same arithmetic.

#include <cstdint>

#include <cuda_bf16.h>

namespace nibble::cuda {

__device__ __forceinline__ void unpack8(const uint4& v, float (&out)[8]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __uint_as_float(words[i] << 16);
    out[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}

__device__ __forceinline__ uint4 pack8(const float (&v)[8]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
    words[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// Elements [at, at + 8) of a row of `width`; zeros beyond it. kVector: the row is 16-byte aligned
/// and width a multiple of 8.
template <bool kVector>
__device__ __forceinline__ void load8(const __nv_bfloat16* row,
                                      int64_t at,
                                      int64_t width,
                                      float (&v)[8]) {
  if constexpr (kVector) {
    unpack8(*reinterpret_cast<const uint4*>(row + at), v);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      v[j] = at + j < width ? __bfloat162float(row[at + j]) : 0.0f;
    }
  }
}

template <bool kVector>
__device__ __forceinline__ void store8(__nv_bfloat16* row,
                                       int64_t at,
                                       int64_t width,
                                       const float (&v)[8]) {
  if constexpr (kVector) {
    *reinterpret_cast<uint4*>(row + at) = pack8(v);
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (at + j < width) {
        row[at + j] = __float2bfloat16_rn(v[j]);
      }
    }
  }
}

/// To bf16 and back.
__device__ __forceinline__ float round_bf16(float v) {
  return __bfloat162float(__float2bfloat16_rn(v));
}

}  // namespace nibble::cuda
