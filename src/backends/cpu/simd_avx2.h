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

  // ---- NVFP4: 32 bytes hold 8 rows x 8 k ----
  // Byte 16 * (row / 4) + 8 * (k % 4 / 2) + 2 * (row % 4) + k % 2, low nibble for k < 4. The two
  // table look-ups give the two bytes of a bf16; interleaving them puts a pair of k's of one row
  // into its 32-bit lane.
  // A slice is four k's: one nibble of every byte.
  static constexpr int kDecodeBytes = 32;
  static constexpr int kSlices = 2;
  static constexpr int kSliceSteps = 4;
  template <int kSlice>
  static void decode(const uint8_t* from, Vec* w) {
    const __m256i low_table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64));
    const __m256i high_table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 63, 63, 63, 64, 64, 64, 64, -128, -65, -65, -65, -64, -64, -64, -64));
    __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    if constexpr (kSlice == 1) {
      codes = _mm256_srli_epi16(codes, 4);
    }
    codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
    const __m256i low = _mm256_shuffle_epi8(low_table, codes);
    const __m256i high = _mm256_shuffle_epi8(high_table, codes);
    split_bf16(_mm256_unpacklo_epi8(low, high), w);
    split_bf16(_mm256_unpackhi_epi8(low, high), w + 2);
  }
  // 32-bit lanes with a pair of bf16 (even k low) to two vectors.
  static void split_bf16(__m256i pairs, Vec* w) {
    w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    w[1] = _mm256_castsi256_ps(
        _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  // E4M3 scales of kLanes rows times 2^-8: the byte shifted into a half-precision word is that
  // value, subnormals included.
  static Vec decode_scales(const uint8_t* from) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 7));
  }

  // ---- W4A4: 32 bytes hold 8 rows x 8 k, four k's of a row in its lane, low nibble for k < 4 ----
  // Codes become unsigned bytes 2 * value + 12; the caller takes 12 * sum(x) away again. A sum of
  // four steps stays below 2304, far inside 16 bits.
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
  static Int start(const int32_t* /*minus_sum*/) { return _mm256_setzero_si256(); }
  static Int dot(Int acc, Int w, Int x) {
    return _mm256_add_epi16(acc, _mm256_maddubs_epi16(w, x));
  }
  static Vec finish(Int acc, const int32_t* minus_sum) {
    const __m256i pairs = _mm256_madd_epi16(acc, _mm256_set1_epi16(1));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(pairs, broadcast_int(minus_sum)));
  }

  // ---- BF16: 32 bytes hold 8 rows x 2 k, a pair of one row in its lane ----
  static constexpr int kPairBytes = 32;
  static constexpr int kPairSteps = 2;
  static void decode_pairs(const uint8_t* from, Vec* w) {
    split_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), w);
  }
};

}  // namespace
}  // namespace nibble::cpu
