// How nvfp4_w4a16_sm90_strips deals out a product of few rows: plain C++, no device needed.
//
// A strip is the 16 features that one warp owns in the records of a tile (nvfp4_layout.h), over all
// of K. A thread block has whole strips, so no two blocks exchange anything. The pieces of K of its
// strips are dealt to its warps; each warp streams the records of its pieces through its own ring
// in shared memory.
#pragma once

#include <cstdint>

#include "backends/cuda/nvfp4_w4a16_cuts.h"

namespace nibble::cuda {

inline constexpr int kStripRows = 16;
inline constexpr int kStripsOfTile = kTileRows / kStripRows;
inline constexpr int kStripBytes = kRecordBytes / 4;  // of 64 columns: 512 of codes, 64 of scales
inline constexpr int kStripStage = 4;                 // K64 blocks of a stage of a ring
inline constexpr int kStripMaxTokens = 8;
inline constexpr int kStripMaxWarps = 16;

struct W4A16StripsPlan {
  int strips = 0;            // of the matrix
  int blocks = 0;            // thread blocks: one a multiprocessor where there are enough strips
  int strips_per_block = 0;  // at most: blocks have as many or one fewer
  int pieces = 0;            // of a strip's K, at most
  bool whole = false;        // a warp takes all pieces of a strip in turn; otherwise one at a time
  int warps = 0;             // of a block
  int stages = 0;            // of a warp's ring
  // Bytes of shared memory: barriers, x, row multipliers and bias, sums of pieces, rings.
  int token_stride = 0;  // from a token's x to the next
  int tokens_at = 0;
  int rows_at = 0;
  int parts_at = 0;
  int ring_at = 0;
  int shared_bytes = 0;
};

/// False where it does not fit: more than kStripMaxTokens rows, or rows too long for shared memory.
bool plan_w4a16_strips(int64_t m, int64_t n, int64_t k, int multiprocessors, W4A16StripsPlan* plan);

/// Whether strips are expected to be faster than the tiles that share pieces of K between blocks.
bool w4a16_strips_pay(int64_t m, int64_t n, int64_t k, int multiprocessors);

}  // namespace nibble::cuda
