// The grid of BF16 activations: what the driver, the kernel and its test agree on. Plain constants,
// since ISA files include this.
//
// A block of 16 activations becomes int16 multiples of one power of two, 2^e. With 2^E the power of
// two at or below the block's largest magnitude (one unit in the last place added first, so that
// two int8 digits suffice), e = E - 14: values of at least 2^(E - 7) keep every bit, smaller ones
// are rounded to nearest, ties to even. e is at least kGridLowest; a block with a NaN, an infinity
// or an e above kGridHighest counts as NaN.
//
// Where a few values of a block are far larger than the others, these would lose much. With r the
// rounding errors and s the values below 2^(e + kSmallBits), a block with
// |r|^2 > kRestThreshold * |s|^2 and (in steps) |r|^2 > kRestLeast or > kRestShare * |s|^2, so not
// for the rounding of one value that is small beside the others of s, and e above kGridLowest gets
// r, which BF16 holds exactly, as a second block on a grid of its own, added after the kRestTile
// blocks around it. The decision depends on the block alone. Five of 10,000 blocks of normally
// distributed values need it, one of 100 in SmolLM2-135M.
#pragma once

namespace nibble::cpu {

inline constexpr int kGridBits = 14;
inline constexpr int kGridLowest = -60;
inline constexpr int kGridHighest = 67;
// The step goes to the kernel as 2^(e + kGridShift): times a scale byte (2^-117) it stays normal.
inline constexpr int kGridShift = 60;
inline constexpr int kSmallBits = 12;
inline constexpr float kRestThreshold = 0x1p-24f;
inline constexpr float kRestLeast = 0.3f;
inline constexpr float kRestShare = 0x1p-10f;
inline constexpr int kRestTile = 16;  // blocks
// 32-bit words of a block among many rows: eight pairs of int16, then the step.
inline constexpr int kGridRecord = 9;

}  // namespace nibble::cpu
