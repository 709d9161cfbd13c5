// AVX2 + FMA as a vector type for the kernel templates. Included by ISA files only; everything has
// internal linkage.
#pragma once

#include <cstdint>

#include <immintrin.h>

namespace nibble::cpu {
namespace {

struct Avx2 {
  static constexpr int kLanes = 8;
  static constexpr int kKPerStep = 1;  // k covered by one multiply-add of a 32-bit lane
  using Vec = __m256;

  static Vec zero() { return _mm256_setzero_ps(); }
  static Vec load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Vec v) { _mm256_storeu_ps(to, v); }
  static Vec broadcast(const float* from) { return _mm256_broadcast_ss(from); }
  static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  // acc + w * x of one step.
  static Vec madd(Vec acc, Vec w, Vec x) { return _mm256_fmadd_ps(w, x, acc); }

  static Vec load_bf16(const uint16_t* from) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
  }
  // Round to nearest even; NaN stays NaN (the integer rounding would carry into the sign).
  static void store_bf16(uint16_t* to, Vec v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    rounded = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
  }

  // 32-bit lanes with a pair of bf16 (even k low) to two vectors.
  static void split_bf16(__m256i pairs, Vec* w) {
    w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    w[1] = _mm256_castsi256_ps(
        _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }

  // ---- NVFP4 block scales: byte v of each lane (packed_scale() in nvfp4_units.h) ----
  template <int kVector>
  static Vec raw_scales(const uint8_t* from) {  // times 2^-117
    __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    bits = kVector == 3 ? _mm256_srli_epi32(bits, 4) : _mm256_slli_epi32(bits, 20 - 8 * kVector);
    return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(0x0FF00000)));
  }
  template <int kVector>
  static Vec block_scales(const uint8_t* from) {  // times 2^-8
    return _mm256_mul_ps(raw_scales<kVector>(from), _mm256_set1_ps(0x1p109f));
  }

  // ---- integer products: 32 bytes hold 8 rows x 8 k, four k's of a row in its lane, low nibble
  // for k < 4 ---- Codes become unsigned bytes 2 * value + 12; the caller takes 12 * sum(x) away
  // again. A sum of four steps stays below 2304, far inside 16 bits.
  using Int = __m256i;
  static Int load_int(const float* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store_int(float* to, Int v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v);
  }
  static Int broadcast_int(const int32_t* from) { return _mm256_set1_epi32(*from); }
  static void decode_bytes(const uint8_t* from, Int* w) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    w[0] = _mm256_shuffle_epi8(table, _mm256_and_si256(codes, nibble));
    w[1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble));
  }
  // -12 * sum(x) of a block of codes, at most 2304, as the low of two 16-bit words: added for
  // nothing by the instruction that adds the words.
  static Int start(const int32_t* minus_sum) { return broadcast_int(minus_sum); }
  // The sums of digits are too large for that: added at the end, with VNNI at the start.
  static Int start_digits(const int32_t* /*minus_sum*/) { return zero_int(); }
  static Int dot(Int acc, Int w, Int x) {
    return keep_order(_mm256_add_epi16(acc, _mm256_maddubs_epi16(w, x)));
  }
  // The compiler may add integers in any order, and it chooses trees that spill half the sums.
  static Int keep_order(Int sum) {
    asm("" : "+x"(sum));
    return sum;
  }
  static Vec finish(Int acc) {
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(acc, _mm256_set1_epi16(1)));
  }
  // Two blocks [2][4 steps] of four k's a lane to eight steps of two k's of each: the low word of a
  // lane sums the first block, the high word the second.
  static constexpr int kLaneBlocks = 2;
  static void join_blocks(Int* w) {
    Int joined[8];
    for (int i = 0; i < 4; ++i) {
      joined[2 * i] = _mm256_blend_epi16(w[i], _mm256_slli_epi32(w[4 + i], 16), 0xAA);
      joined[2 * i + 1] = _mm256_blend_epi16(_mm256_srli_epi32(w[i], 16), w[4 + i], 0xAA);
    }
    for (int i = 0; i < 8; ++i) {
      w[i] = joined[i];
    }
  }
  static Vec finish_block(Int acc, int block) {
    return _mm256_cvtepi32_ps(block == 0 ? _mm256_madd_epi16(acc, _mm256_set1_epi32(1))
                                         : _mm256_srai_epi32(acc, 16));
  }
  // A block's sum times its scale, which is an int16 in the block's word.
  static Vec scale_block(Int acc, Int scale) {
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(acc, scale));
  }
  static bool is_whole(Vec v) {
    return _mm256_movemask_ps(
               _mm256_cmp_ps(v, _mm256_cvtepi32_ps(_mm256_cvttps_epi32(v)), _CMP_EQ_OQ)) == 0xFF;
  }
  static Int word_of_block(Vec v, int block) {
    return _mm256_slli_epi32(_mm256_cvttps_epi32(v), 16 * block);
  }
  // 256 * high + low; each is four dot() of digits, at most 24576 in a 16-bit lane.
  static Vec finish_digits(Int high, Int low, const int32_t* minus_sum) {
    const __m256i lows = _mm256_madd_epi16(low, _mm256_set1_epi16(1));
    const __m256i highs = _mm256_madd_epi16(high, _mm256_set1_epi16(256));
    const __m256i sum = _mm256_add_epi32(lows, broadcast_int(minus_sum));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(sum, highs));
  }
  // Codes to pairs of int16 (twice the value): per four k's (k0, k2), then (k1, k3).
  static void decode_pairs16(const uint8_t* from, Int* w) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    for (int half = 0; half < 2; ++half) {
      const __m256i bytes = _mm256_shuffle_epi8(table, _mm256_and_si256(codes, nibble));
      w[2 * half] = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
      w[2 * half + 1] = _mm256_srai_epi16(bytes, 8);
      codes = _mm256_srli_epi16(codes, 4);
    }
  }
  static Int zero_int() { return _mm256_setzero_si256(); }
  static Int first_pairs16(Int w, Int x) { return _mm256_madd_epi16(w, x); }
  static Int dot_pairs16(Int acc, Int w, Int x) {
    return keep_order(_mm256_add_epi32(acc, _mm256_madd_epi16(w, x)));
  }
  static Vec bits_as_float(Int v) { return _mm256_castsi256_ps(v); }
  static Vec to_float(Int v) { return _mm256_cvtepi32_ps(v); }

  // ---- BF16: 32 bytes hold 8 rows x 2 k, a pair of one row in its lane ----
  static constexpr int kPairBytes = 32;
  static constexpr int kPairSteps = 2;
  static void decode_pairs(const uint8_t* from, Vec* w) {
    split_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), w);
  }
};

}  // namespace
}  // namespace nibble::cpu
