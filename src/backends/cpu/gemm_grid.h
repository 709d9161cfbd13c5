// The grid of BF16 activations: what the driver, the kernel and its test agree on. Plain constants,
// since ISA files include this.
//
// A block of 16 activations becomes int16 multiples of one power of two, 2^e. With 2^E the power of
// two at or below the block's largest magnitude (one unit in the last place added first, so that
// two int8 digits suffice), e = E - 14: values of at least 2^(E - 7) keep every bit, smaller ones
// are rounded to nearest, ties to even. e is at least kGridLowest; a block with a NaN, an infinity
// or an e above kGridHighest counts as NaN.
#pragma once

namespace nibble::cpu {

inline constexpr int kGridBits = 14;
inline constexpr int kGridLowest = -60;
inline constexpr int kGridHighest = 67;
// The step goes to the kernel as 2^(e + kGridShift): times a scale byte (2^-117) it stays normal.
inline constexpr int kGridShift = 60;

}  // namespace nibble::cpu
