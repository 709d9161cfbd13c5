// exp as a template over a vector type (Math8 in simd_math_avx2.h, Math16 in simd_math_avx512.h):
// the same operations in every lane, so the same bits at every width. Included by ISA files only.
#pragma once

namespace nibble::cpu {
namespace {

// e^x by 2^n * P(r), |r| <= ln(2) / 2, degree 6 (Cephes expf constants); relative error below 2e-7.
// Below -87.3 the result is 0; NaN stays NaN.
template <typename V>
inline typename V::Vec exp_of(typename V::Vec x) {
  using Vec = typename V::Vec;
  const Vec low = V::set1(-87.3f);
  // The second operand is returned when one is NaN.
  Vec v = V::max(low, x);
  v = V::min(V::set1(88.7f), v);
  const Vec n = V::round(V::mul(v, V::set1(1.44269504088896341f)));
  Vec r = V::fnmadd(n, V::set1(0.693359375f), v);
  r = V::fnmadd(n, V::set1(-2.12194440e-4f), r);
  Vec p = V::set1(1.9875691500e-4f);
  p = V::fma(p, r, V::set1(1.3981999507e-3f));
  p = V::fma(p, r, V::set1(8.3334519073e-3f));
  p = V::fma(p, r, V::set1(4.1665795894e-2f));
  p = V::fma(p, r, V::set1(1.6666665459e-1f));
  p = V::fma(p, r, V::set1(5.0000001201e-1f));
  p = V::fma(V::mul(r, r), p, V::add(r, V::set1(1.0f)));
  return V::zero_where_less(V::scale_by_power(p, n), x, low);
}

}  // namespace
}  // namespace nibble::cpu
