// AVX-512 in plain C++, forced in front of the AVX-512 kernel sources (-include) by the emulated
// test program: their layouts, tables and orders of summation are checked on machines without
// AVX-512. Only the intrinsics that simd_avx512.h and simd_math_avx512.h use. BF16 dot products add
// the odd product, then the even one, each with one rounding; hardware may add the pair in another
// order, so this does not predict its last bits.
#pragma once

#include <cstdint>

#include <immintrin.h>

namespace nibble_emulated {
namespace {

using m512 = float __attribute__((vector_size(64)));
using m512i = long long __attribute__((vector_size(64)));
using m512bh = short __attribute__((vector_size(64)));
using I32 = int32_t __attribute__((vector_size(64)));
using U32 = uint32_t __attribute__((vector_size(64)));
using I16 = int16_t __attribute__((vector_size(64)));
using U16 = uint16_t __attribute__((vector_size(64)));
using U8 = uint8_t __attribute__((vector_size(64)));

template <typename To, typename From>
inline To copy_bits(const From& from) {
  To to{};
  __builtin_memcpy(&to, &from, sizeof(to) < sizeof(from) ? sizeof(to) : sizeof(from));
  return to;
}
template <typename V>
inline V load_any(const void* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}

inline m512 setzero_ps() { return m512{}; }
inline m512 loadu_ps(const void* from) { return load_any<m512>(from); }
inline m512i loadu_si512(const void* from) { return load_any<m512i>(from); }
inline void storeu_ps(void* to, m512 v) { __builtin_memcpy(to, &v, 64); }
inline void storeu_si512(void* to, m512i v) { __builtin_memcpy(to, &v, 64); }
inline m512 set1_ps(float value) { return m512{} + value; }
inline m512i set1_epi32(int value) { return reinterpret_cast<m512i>(I32{} + value); }
inline m512i set1_epi8(int value) {
  return reinterpret_cast<m512i>(U8{} + static_cast<uint8_t>(value));
}
inline m512 add_ps(m512 a, m512 b) { return a + b; }
inline m512 mul_ps(m512 a, m512 b) { return a * b; }
inline m512 fmadd_ps(m512 a, m512 b, m512 c) {
  m512 out{};
  for (int i = 0; i < 16; ++i) {
    out[i] = __builtin_fmaf(a[i], b[i], c[i]);
  }
  return out;
}
inline m512i and_si512(m512i a, m512i b) { return a & b; }
inline m512i or_si512(m512i a, m512i b) { return a | b; }
inline m512i add_epi32(m512i a, m512i b) {
  return reinterpret_cast<m512i>(reinterpret_cast<U32>(a) + reinterpret_cast<U32>(b));
}
inline m512i slli_epi32(m512i a, unsigned count) {
  return reinterpret_cast<m512i>(reinterpret_cast<U32>(a) << count);
}
inline m512i srli_epi32(m512i a, unsigned count) {
  return reinterpret_cast<m512i>(reinterpret_cast<U32>(a) >> count);
}
inline m512i srli_epi16(m512i a, unsigned count) {
  return reinterpret_cast<m512i>(reinterpret_cast<U16>(a) >> static_cast<uint16_t>(count));
}
inline m512i slli_epi16(m512i a, unsigned count) {
  return reinterpret_cast<m512i>(reinterpret_cast<U16>(a) << static_cast<uint16_t>(count));
}
inline m512i srai_epi16(m512i a, unsigned count) {
  return reinterpret_cast<m512i>(reinterpret_cast<I16>(a) >> static_cast<int16_t>(count));
}
inline m512i permutexvar_epi16(m512i index, m512i table) {
  const auto from = reinterpret_cast<U16>(table);
  const auto at = reinterpret_cast<U16>(index);
  U16 out{};
  for (int i = 0; i < 32; ++i) {
    out[i] = from[at[i] & 31];
  }
  return reinterpret_cast<m512i>(out);
}
inline m512i shuffle_epi8(m512i table, m512i control) {
  const auto from = reinterpret_cast<U8>(table);
  const auto at = reinterpret_cast<U8>(control);
  U8 out{};
  for (int i = 0; i < 64; ++i) {
    out[i] = (at[i] & 0x80) != 0 ? static_cast<uint8_t>(0) : from[i / 16 * 16 + (at[i] & 15)];
  }
  return reinterpret_cast<m512i>(out);
}
inline m512i broadcast_i32x4(__m128i quarter) {
  m512i out{};
  for (int i = 0; i < 4; ++i) {
    __builtin_memcpy(reinterpret_cast<char*>(&out) + i * 16, &quarter, 16);
  }
  return out;
}
inline m512i castsi256_si512(__m256i low) { return copy_bits<m512i>(low); }
inline m512i inserti64x4(m512i v, __m256i half, int at) {
  __builtin_memcpy(reinterpret_cast<char*>(&v) + at * 32, &half, 32);
  return v;
}
inline m512i cvtepu16_epi32(__m256i words) {
  uint16_t from[16];
  __builtin_memcpy(from, &words, 32);
  U32 out{};
  for (int i = 0; i < 16; ++i) {
    out[i] = from[i];
  }
  return reinterpret_cast<m512i>(out);
}
inline __m256i cvtepi32_epi16(m512i v) {
  const auto from = reinterpret_cast<U32>(v);
  uint16_t words[16];
  for (int i = 0; i < 16; ++i) {
    words[i] = static_cast<uint16_t>(from[i]);
  }
  return load_any<__m256i>(words);
}
inline m512 cvtph_ps(__m256i halves) {
  const __m256 parts[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                           _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
  return load_any<m512>(parts);
}
inline m512 cvtepi32_ps(m512i v) { return __builtin_convertvector(reinterpret_cast<I32>(v), m512); }
inline m512 castsi512_ps(m512i v) { return reinterpret_cast<m512>(v); }
inline m512i castps_si512(m512 v) { return reinterpret_cast<m512i>(v); }
inline uint16_t cmp_ps_mask(m512 a, m512 b, int predicate) {  // less, else unordered
  unsigned mask = 0;
  for (unsigned i = 0; i < 16; ++i) {
    const bool unordered = a[i] != a[i] || b[i] != b[i];
    mask |= ((predicate == _CMP_LT_OQ ? a[i] < b[i] : unordered) ? 1u : 0u) << i;
  }
  return static_cast<uint16_t>(mask);
}
inline m512i mask_mov_epi32(m512i otherwise, uint16_t mask, m512i chosen) {
  auto out = reinterpret_cast<U32>(otherwise);
  const auto from = reinterpret_cast<U32>(chosen);
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i & 1) != 0) {
      out[i] = from[i];
    }
  }
  return reinterpret_cast<m512i>(out);
}
inline m512 mask_mov_ps(m512 otherwise, uint16_t mask, m512 chosen) {
  return reinterpret_cast<m512>(
      mask_mov_epi32(reinterpret_cast<m512i>(otherwise), mask, reinterpret_cast<m512i>(chosen)));
}
// Both halves through AVX2's own instruction.
template <typename Half>
inline m512 by_halves(m512 a, m512 b, const Half& half) {
  __m256 parts[2];
  for (int i = 0; i < 2; ++i) {
    parts[i] = half(load_any<__m256>(reinterpret_cast<const char*>(&a) + i * 32),
                    load_any<__m256>(reinterpret_cast<const char*>(&b) + i * 32));
  }
  return load_any<m512>(parts);
}
inline m512 sub_ps(m512 a, m512 b) { return a - b; }
inline m512 div_ps(m512 a, m512 b) { return a / b; }
inline m512 max_ps(m512 a, m512 b) {
  return by_halves(a, b, [](__m256 x, __m256 y) { return _mm256_max_ps(x, y); });
}
inline m512 min_ps(m512 a, m512 b) {
  return by_halves(a, b, [](__m256 x, __m256 y) { return _mm256_min_ps(x, y); });
}
inline m512 roundscale_ps(m512 v, int /*to nearest*/) {
  return by_halves(v, v, [](__m256 x, __m256) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  });
}
inline m512i cvtps_epi32(m512 v) {
  return reinterpret_cast<m512i>(
      by_halves(v, v, [](__m256 x, __m256) { return _mm256_castsi256_ps(_mm256_cvtps_epi32(x)); }));
}
inline m512 fnmadd_ps(m512 a, m512 b, m512 c) { return fmadd_ps(-a, b, c); }
inline m512i sub_epi32(m512i a, m512i b) {
  return reinterpret_cast<m512i>(reinterpret_cast<U32>(a) - reinterpret_cast<U32>(b));
}
inline m512i srai_epi32(m512i a, unsigned count) {
  return reinterpret_cast<m512i>(reinterpret_cast<I32>(a) >> static_cast<int>(count));
}
inline m512 shuffle_ps(m512 a, m512 b, int control) {
  m512 out{};
  for (int i = 0; i < 16; ++i) {
    const int from = i / 4 * 4 + (control >> (i % 4 * 2) & 3);
    out[i] = i % 4 < 2 ? a[from] : b[from];
  }
  return out;
}
inline m512 shuffle_f32x4(m512 a, m512 b, int control) {
  m512 out{};
  for (int i = 0; i < 16; ++i) {
    const int from = (control >> (i / 4 * 2) & 3) * 4 + i % 4;
    out[i] = i < 8 ? a[from] : b[from];
  }
  return out;
}
inline m512 castps256_ps512(__m256 low) { return copy_bits<m512>(low); }
inline __m256 castps512_ps256(m512 v) { return copy_bits<__m256>(v); }
inline __m256 extractf32x8_ps(m512 v, int at) {
  return load_any<__m256>(reinterpret_cast<const char*>(&v) + at * 32);
}
inline m512 insertf32x8(m512 v, __m256 half, int at) {
  __builtin_memcpy(reinterpret_cast<char*>(&v) + at * 32, &half, 32);
  return v;
}
inline m512 broadcast_f32x8(__m256 half) { return insertf32x8(castps256_ps512(half), half, 1); }
inline m512i dpbusd_epi32(m512i sum, m512i unsigned_bytes, m512i signed_bytes) {
  auto out = reinterpret_cast<I32>(sum);
  const auto a = reinterpret_cast<U8>(unsigned_bytes);
  const auto b = reinterpret_cast<U8>(signed_bytes);
  for (int i = 0; i < 64; ++i) {
    out[i / 4] += static_cast<int>(a[i]) * static_cast<int8_t>(b[i]);
  }
  return reinterpret_cast<m512i>(out);
}
inline m512i dpwssd_epi32(m512i sum, m512i a_words, m512i b_words) {
  auto out = reinterpret_cast<I32>(sum);
  const auto a = reinterpret_cast<I16>(a_words);
  const auto b = reinterpret_cast<I16>(b_words);
  for (int i = 0; i < 32; ++i) {
    out[i / 2] += static_cast<int>(a[i]) * b[i];
  }
  return reinterpret_cast<m512i>(out);
}
inline m512i madd_epi16(m512i a, m512i b) { return dpwssd_epi32(m512i{}, a, b); }
inline m512 dpbf16_ps(m512 sum, m512bh a, m512bh b) {
  const auto odd = [](m512bh v) {
    return reinterpret_cast<m512>(reinterpret_cast<U32>(v) & 0xFFFF0000u);
  };
  const auto even = [](m512bh v) { return reinterpret_cast<m512>(reinterpret_cast<U32>(v) << 16); };
  return fmadd_ps(even(a), even(b), fmadd_ps(odd(a), odd(b), sum));
}

}  // namespace
}  // namespace nibble_emulated

// NOLINTBEGIN(bugprone-reserved-identifier): these replace the compiler's own names
// Those with an immediate operand are macros in clang's header, and in GCC's without optimization.
#undef _mm512_cmp_ps_mask
#undef _mm512_extractf32x8_ps
#undef _mm512_insertf32x8
#undef _mm512_inserti64x4
#undef _mm512_roundscale_ps
#undef _mm512_shuffle_f32x4
#undef _mm512_shuffle_ps
#define __AVX512BF16__ 1
#define __AVX512VNNI__ 1
#define __m512 nibble_emulated::m512
#define __mmask16 uint16_t
#define __m512i nibble_emulated::m512i
#define __m512bh nibble_emulated::m512bh
#define _mm512_add_epi32 nibble_emulated::add_epi32
#define _mm512_add_ps nibble_emulated::add_ps
#define _mm512_and_si512 nibble_emulated::and_si512
#define _mm512_broadcast_f32x8 nibble_emulated::broadcast_f32x8
#define _mm512_broadcast_i32x4 nibble_emulated::broadcast_i32x4
#define _mm512_castps256_ps512 nibble_emulated::castps256_ps512
#define _mm512_castps512_ps256 nibble_emulated::castps512_ps256
#define _mm512_castps_si512 nibble_emulated::castps_si512
#define _mm512_castsi256_si512 nibble_emulated::castsi256_si512
#define _mm512_castsi512_ps nibble_emulated::castsi512_ps
#define _mm512_cmp_ps_mask nibble_emulated::cmp_ps_mask
#define _mm512_cvtepi32_epi16 nibble_emulated::cvtepi32_epi16
#define _mm512_cvtepi32_ps nibble_emulated::cvtepi32_ps
#define _mm512_cvtepu16_epi32 nibble_emulated::cvtepu16_epi32
#define _mm512_cvtph_ps nibble_emulated::cvtph_ps
#define _mm512_cvtps_epi32 nibble_emulated::cvtps_epi32
#define _mm512_div_ps nibble_emulated::div_ps
#define _mm512_dpbf16_ps nibble_emulated::dpbf16_ps
#define _mm512_dpbusd_epi32 nibble_emulated::dpbusd_epi32
#define _mm512_dpwssd_epi32 nibble_emulated::dpwssd_epi32
#define _mm512_extractf32x8_ps nibble_emulated::extractf32x8_ps
#define _mm512_fmadd_ps nibble_emulated::fmadd_ps
#define _mm512_fnmadd_ps nibble_emulated::fnmadd_ps
#define _mm512_insertf32x8 nibble_emulated::insertf32x8
#define _mm512_inserti64x4 nibble_emulated::inserti64x4
#define _mm512_loadu_ps nibble_emulated::loadu_ps
#define _mm512_loadu_si512 nibble_emulated::loadu_si512
#define _mm512_madd_epi16 nibble_emulated::madd_epi16
#define _mm512_mask_mov_epi32 nibble_emulated::mask_mov_epi32
#define _mm512_mask_mov_ps nibble_emulated::mask_mov_ps
#define _mm512_max_ps nibble_emulated::max_ps
#define _mm512_min_ps nibble_emulated::min_ps
#define _mm512_mul_ps nibble_emulated::mul_ps
#define _mm512_or_si512 nibble_emulated::or_si512
#define _mm512_permutexvar_epi16 nibble_emulated::permutexvar_epi16
#define _mm512_roundscale_ps nibble_emulated::roundscale_ps
#define _mm512_set1_epi32 nibble_emulated::set1_epi32
#define _mm512_set1_epi8 nibble_emulated::set1_epi8
#define _mm512_set1_ps nibble_emulated::set1_ps
#define _mm512_setzero_ps nibble_emulated::setzero_ps
#define _mm512_shuffle_epi8 nibble_emulated::shuffle_epi8
#define _mm512_shuffle_f32x4 nibble_emulated::shuffle_f32x4
#define _mm512_shuffle_ps nibble_emulated::shuffle_ps
#define _mm512_slli_epi16 nibble_emulated::slli_epi16
#define _mm512_slli_epi32 nibble_emulated::slli_epi32
#define _mm512_srai_epi16 nibble_emulated::srai_epi16
#define _mm512_srai_epi32 nibble_emulated::srai_epi32
#define _mm512_srli_epi16 nibble_emulated::srli_epi16
#define _mm512_srli_epi32 nibble_emulated::srli_epi32
#define _mm512_storeu_ps nibble_emulated::storeu_ps
#define _mm512_storeu_si512 nibble_emulated::storeu_si512
#define _mm512_sub_epi32 nibble_emulated::sub_epi32
#define _mm512_sub_ps nibble_emulated::sub_ps
// NOLINTEND(bugprone-reserved-identifier)
