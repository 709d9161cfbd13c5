// small_ops_avx512: the row functions of small_ops.cpp in AVX-512, in the bits of small_ops_avx2.
#include <cstdint>

#include <immintrin.h>

#include "backends/cpu/isa_abi.h"
#include "backends/cpu/simd_avx512.h"
#include "backends/cpu/simd_math_avx512.h"
#include "backends/cpu/small_ops_kernel.h"

namespace nibble::cpu {

namespace {

struct Rows16 : Math16 {
  static Vec load_words(const uint16_t* from) { return load_bf16x16(from); }
  static void store_words(uint16_t* to, Vec v) { Avx512::store_bf16(to, v); }
};

}  // namespace

const SmallOpsRows* small_ops_avx512() { return &kRowsOf<Rows16>; }

}  // namespace nibble::cpu
