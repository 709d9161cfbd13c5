#pragma once
// The warpgroup products of attention: scores = Q K^T with both operands in shared memory, out += P
// V with P in registers and V "transposed" (its rows are the summed dimension). The rules of
// wgmma.cuh hold. Swizzle 128 throughout: rows of 128 bytes, atoms of 8 rows, 1024-byte aligned.

#include <cstdint>

#include "backends/cuda/device/wgmma.cuh"

namespace nibble::cuda {

/// Descriptor of a tile whose rows are the summed dimension: [columns / 64][rows][64] bf16, blocks
/// of 64 columns `column_bytes` apart. Add 128 to the low word for each further 16 rows.
__device__ __forceinline__ uint32_t wgmma_transposed_low(uint32_t shared_address_of_tile,
                                                         uint32_t column_bytes) {
  return (column_bytes >> 4) << 16 | (shared_address_of_tile & 0x3FFFF) >> 4;
}

/// Keeps reads of accumulators behind the wait before it, and writes before the products after it.
template <int kCount>
__device__ __forceinline__ void pin_accumulators(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+f"(d[i])::"memory");
  }
}

#define NIBBLE_F8(d, i)                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define NIBBLE_F32(d, i) \
  NIBBLE_F8(d, i), NIBBLE_F8(d, i + 8), NIBBLE_F8(d, i + 16), NIBBLE_F8(d, i + 24)
#define NIBBLE_D32                                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NIBBLE_D64                                                                     \
  NIBBLE_D32                                                                           \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/// The operands' type: bf16, or f16 where kF16.
#define NIBBLE_SS_128(type)                                                         \
  asm volatile(                                                                     \
      "{\n .reg .pred p;\n setp.ne.b32 p, %66, 0;\n"                                \
      " wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" NIBBLE_D64 \
      "}, %64, %65, p, 1, 1, 0, 0;\n}\n"                                            \
      : NIBBLE_F32(d, 0), NIBBLE_F32(d, 32)                                         \
      : "l"(a), "l"(b), "r"(add ? 1 : 0))
#define NIBBLE_RS_128(type)                                                                 \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" NIBBLE_D64 \
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"                                  \
               : NIBBLE_F32(d, 0), NIBBLE_F32(d, 32)                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define NIBBLE_RS_64(type)                                                                 \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" NIBBLE_D32 \
               "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"                                 \
               : NIBBLE_F32(d, 0)                                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

/// d[64, 128] = a[64, 16] b[128, 16]^T, added to d where `add`. Both K-major in shared memory.
template <bool kF16>
__device__ __forceinline__ void wgmma_ss_128(float (&d)[64], uint64_t a, uint64_t b, bool add) {
  if constexpr (kF16) {
    NIBBLE_SS_128("f16");
  } else {
    NIBBLE_SS_128("bf16");
  }
}

/// d[64, n] += a[64, 16] b[16, n], n = 2 kCount: a in registers, the rows of b are the 16.
template <bool kF16, int kCount>
__device__ __forceinline__ void wgmma_rs_transposed(float (&d)[kCount],
                                                    const uint32_t (&a)[4],
                                                    uint64_t b) {
  static_assert(kCount == 64 || kCount == 32);
  if constexpr (kCount == 64 && kF16) {
    NIBBLE_RS_128("f16");
  } else if constexpr (kCount == 64) {
    NIBBLE_RS_128("bf16");
  } else if constexpr (kF16) {
    NIBBLE_RS_64("f16");
  } else {
    NIBBLE_RS_64("bf16");
  }
}

#undef NIBBLE_SS_128
#undef NIBBLE_RS_128
#undef NIBBLE_RS_64
#undef NIBBLE_F8
#undef NIBBLE_F32
#undef NIBBLE_D32
#undef NIBBLE_D64

}  // namespace nibble::cuda
