// AVX-512 (F, BW, VL, DQ) as a vector type for the kernel templates, and its form with BF16 dot
// products. Included by ISA files only; everything has internal linkage.
#pragma once

#include <cstdint>

#include <immintrin.h>

namespace nibble::cpu {
namespace {

struct Avx512 {
  static constexpr int kLanes = 16;
  static constexpr int kKPerStep = 1;
  using Vec = __m512;

  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Vec v) { _mm512_storeu_ps(to, v); }
  static Vec broadcast(const float* from) { return _mm512_set1_ps(*from); }
  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec madd(Vec acc, Vec w, Vec x) { return _mm512_fmadd_ps(w, x, acc); }

  static Vec load_bf16(const uint16_t* from) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
  }
  // Round to nearest even; NaN stays NaN (the integer rounding would carry into the sign).
  static void store_bf16(uint16_t* to, Vec v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i words = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, quiet), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(words));
  }

  // ---- NVFP4: 64 bytes hold 16 rows x 8 k ----
  // A row's 32-bit lane: its low word has the even k's, its high word the odd ones, four nibbles
  // each. One table look-up on a shifted register decodes 32 codes straight to bf16 pairs; the
  // look-up index is 5 bits wide, so the table holds the 16 values twice.
  // A slice is four k's: two nibbles of every word.
  static constexpr int kDecodeBytes = 64;
  static constexpr int kSlices = 2;
  static constexpr int kSliceSteps = 4;
  static __m512i bf16_table() {
    const __m256i once = _mm256_setr_epi16(0x0000,
                                           0x3F00,
                                           0x3F80,
                                           0x3FC0,
                                           0x4000,
                                           0x4040,
                                           0x4080,
                                           0x40C0,
                                           -0x8000,
                                           -0x4100,
                                           -0x4080,
                                           -0x4040,
                                           -0x4000,
                                           -0x3FC0,
                                           -0x3F80,
                                           -0x3F40);
    return _mm512_inserti64x4(_mm512_castsi256_si512(once), once, 1);
  }
  template <int kSlice>
  static void decode_to_pairs(const uint8_t* from, __m512i* pairs) {
    const __m512i table = bf16_table();
    const __m512i codes = _mm512_loadu_si512(from);
    pairs[0] = _mm512_permutexvar_epi16(kSlice == 0 ? codes : _mm512_srli_epi16(codes, 8), table);
    pairs[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, kSlice * 8 + 4), table);
  }
  template <int kSlice>
  static void decode(const uint8_t* from, Vec* w) {
    __m512i pairs[2];
    decode_to_pairs<kSlice>(from, pairs);
    split_bf16(pairs[0], w);
    split_bf16(pairs[1], w + 2);
  }
  static void split_bf16(__m512i pairs, Vec* w) {
    w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    w[1] = _mm512_castsi512_ps(
        _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  // Byte v of each lane (packed_scale() in nvfp4_units.h).
  template <int kVector>
  static Vec raw_scales(const uint8_t* from) {  // times 2^-117
    __m512i bits = _mm512_loadu_si512(from);
    bits = kVector == 3 ? _mm512_srli_epi32(bits, 4) : _mm512_slli_epi32(bits, 20 - 8 * kVector);
    return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(0x0FF00000)));
  }
  template <int kVector>
  static Vec block_scales(const uint8_t* from) {  // times 2^-8
    return _mm512_mul_ps(raw_scales<kVector>(from), _mm512_set1_ps(0x1p109f));
  }

#ifdef __AVX512VNNI__
  // ---- integer products: 64 bytes hold 16 rows x 8 k (see simd_avx2.h) ----
  using Int = __m512i;
  static Int load_int(const float* from) { return _mm512_loadu_si512(from); }
  static void store_int(float* to, Int v) { _mm512_storeu_si512(to, v); }
  static Int broadcast_int(const int32_t* from) { return _mm512_set1_epi32(*from); }
  static void decode_bytes(const uint8_t* from, Int* w) {
    const __m512i table = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512i codes = _mm512_loadu_si512(from);
    w[0] = _mm512_shuffle_epi8(table, _mm512_and_si512(codes, nibble));
    w[1] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble));
  }
  static Int start(const int32_t* minus_sum) { return _mm512_set1_epi32(*minus_sum); }
  static Int start_digits(const int32_t* minus_sum) { return start(minus_sum); }
  static Int dot(Int acc, Int w, Int x) { return _mm512_dpbusd_epi32(acc, w, x); }
  static Vec finish(Int acc) { return _mm512_cvtepi32_ps(acc); }
  static constexpr int kLaneBlocks = 1;  // dot() adds all four bytes of a lane
  static void join_blocks(Int* /*w*/) {}
  static Vec finish_block(Int acc, int /*block*/) { return finish(acc); }
  static Vec finish_digits(Int high, Int low, const int32_t* /*minus_sum*/) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
  }
  // Codes to pairs of int16 (see simd_avx2.h): the nibbles of a word are the first, third, second
  // and fourth pair's. As in decode_to_pairs() the table holds the values twice.
  static void decode_pairs16(const uint8_t* from, Int* w) {
    const __m256i once = _mm256_setr_epi16(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m512i table = _mm512_inserti64x4(_mm512_castsi256_si512(once), once, 1);
    const __m512i codes = _mm512_loadu_si512(from);
    w[0] = _mm512_permutexvar_epi16(codes, table);
    w[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 8), table);
    w[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), table);
    w[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), table);
  }
  static Int zero_int() { return _mm512_set1_epi32(0); }
  static Int first_pairs16(Int w, Int x) { return _mm512_madd_epi16(w, x); }
  static Int dot_pairs16(Int acc, Int w, Int x) { return _mm512_dpwssd_epi32(acc, w, x); }
  static Vec bits_as_float(Int v) { return _mm512_castsi512_ps(v); }
  static Vec to_float(Int v) { return _mm512_cvtepi32_ps(v); }
#endif

  // ---- BF16: 64 bytes hold 16 rows x 2 k ----
  static constexpr int kPairBytes = 64;
  static constexpr int kPairSteps = 2;
  static void decode_pairs(const uint8_t* from, Vec* w) { split_bf16(_mm512_loadu_si512(from), w); }
};

#ifdef __AVX512BF16__
// A 32-bit lane is a pair of bf16: one step covers two k's.
struct Avx512Bf16 : Avx512 {
  static constexpr int kKPerStep = 2;
  static Vec madd(Vec acc, Vec w, Vec x) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
  }
  static constexpr int kSliceSteps = 2;
  template <int kSlice>
  static void decode(const uint8_t* from, Vec* w) {
    __m512i pairs[2];
    decode_to_pairs<kSlice>(from, pairs);
    w[0] = _mm512_castsi512_ps(pairs[0]);
    w[1] = _mm512_castsi512_ps(pairs[1]);
  }
  static constexpr int kPairSteps = 1;
  static void decode_pairs(const uint8_t* from, Vec* w) {
    w[0] = _mm512_castsi512_ps(_mm512_loadu_si512(from));
  }
};
#endif

}  // namespace
}  // namespace nibble::cpu
