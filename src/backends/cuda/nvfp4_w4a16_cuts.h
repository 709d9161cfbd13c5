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
