// AVX-512 for the templates of attention and small operations. Included by ISA files only.
#pragma once

#include <cstdint>

#include <immintrin.h>

#include "backends/cpu/simd_math.h"

namespace nibble::cpu {
namespace {

struct Math16 {
  static constexpr int kLanes = 16;
  using Vec = __m512;
  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec set1(float value) { return _mm512_set1_ps(value); }
  static Vec load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Vec v) { _mm512_storeu_ps(to, v); }
  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec fnmadd(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
  static Vec round(Vec v) {
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vec scale_by_power(Vec v, Vec n) {  // as in Math8
    const __m512i whole = _mm512_cvtps_epi32(n);
    const __m512i half = _mm512_srai_epi32(whole, 1);
    const auto power = [](__m512i exponent) {
      return _mm512_castsi512_ps(
          _mm512_slli_epi32(_mm512_add_epi32(exponent, _mm512_set1_epi32(127)), 23));
    };
    return _mm512_mul_ps(_mm512_mul_ps(v, power(half)), power(_mm512_sub_epi32(whole, half)));
  }
  static Vec zero_where_less(Vec v, Vec x, Vec limit) {
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), _mm512_setzero_ps());
  }
};

// As _mm256_hadd_ps in each 128-bit lane: an addition of two does not depend on their order.
inline __m512 hadd16(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD));
}

// v[j] holds eight partial sums of position j, then eight of position j + 8: the sums of positions
// 0 to 15, each added up as sum8x8() in simd_math_avx2.h does.
inline __m512 sum16x8(const __m512* v) {
  const __m512 a = hadd16(hadd16(v[0], v[1]), hadd16(v[2], v[3]));
  const __m512 b = hadd16(hadd16(v[4], v[5]), hadd16(v[6], v[7]));
  // Quarters: positions 0-3, 8-11, 4-7, 12-15.
  const __m512 sums =
      _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
  return _mm512_shuffle_f32x4(sums, sums, 0xD8);
}

inline __m512 join(__m256 low, __m256 high) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}

inline __m512 load_bf16x16(const uint16_t* from) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

}  // namespace
}  // namespace nibble::cpu
