// Where K is cut: part of the summation order of nvfp4_w4a16_sm90, so a function of the matrix
// alone.
//
// The K64 blocks of all row tiles in a row are one line of row_tiles * k_blocks blocks, cut into
// `units` runs of equal length (to a block). A tile's pieces are what lies between cuts inside it.
// With one or two units a thread block everyone has the same amount of work, whatever the shape.
#pragma once

#include <cstdint>

#include "backends/cuda/nvfp4_layout.h"

namespace nibble::cuda {

/// Division by a number that is the same in a whole launch: two multiplications in a kernel.
struct FastDivisor {
  uint32_t divisor = 1;
  uint64_t inverse = 0;  // 2^64 / divisor, rounded up; 0 for 1

  FastDivisor() = default;
  /// Below 1 counts as 1: nothing is divided by it.
  explicit FastDivisor(int by)
      : divisor(by < 1 ? 1 : static_cast<uint32_t>(by)), inverse(~uint64_t{0} / divisor + 1) {}
  /// Exact for every 32-bit value: rounding `inverse` up adds less than value / 2^64. Kernels for
  /// sm_80 are short of registers for it and divide.
  NIBBLE_HOST_DEVICE int divide(uint32_t value) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    return static_cast<int>(value / divisor);
#else
    const uint64_t low = (inverse & 0xFFFFFFFFu) * value >> 32;
    const uint64_t quotient = ((inverse >> 32) * value + low) >> 32;
    return static_cast<int>(divisor == 1 ? value : static_cast<uint32_t>(quotient));
#endif
  }
};

struct W4A16Cuts {
  int row_tiles = 1;
  int k_blocks = 1;
  int units = 1;

  // 32 bits are enough for (total + 1) * units up to 2^32: 130 G weights; w4a16_cuts checks.
  NIBBLE_HOST_DEVICE int total() const { return row_tiles * k_blocks; }
  /// First block of a unit; unit_begin(units) is the end of the line.
  NIBBLE_HOST_DEVICE int unit_begin(int unit) const {
    return static_cast<int>(static_cast<uint32_t>(unit) * static_cast<uint32_t>(total()) /
                            static_cast<uint32_t>(units));
  }
  /// The unit that holds a block.
  NIBBLE_HOST_DEVICE int unit_of(int block) const {
    return static_cast<int>((static_cast<uint32_t>(block + 1) * static_cast<uint32_t>(units) - 1) /
                            static_cast<uint32_t>(total()));
  }
};

W4A16Cuts w4a16_cuts(int64_t n, int64_t k);

}  // namespace nibble::cuda
