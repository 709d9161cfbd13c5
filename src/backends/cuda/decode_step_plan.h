// How the kernel of a whole decode step deals out the products of a layer: plain C++, no device
// needed.
//
// A strip is 16 features over all of K (nvfp4_w4a16_strips.h). A thread block has the same strips
// of every layer's matrix; the pieces of K of its strips (nvfp4_w4a16_cuts.h: they are part of the
// summation order) are dealt to its warps, the longest first, to the warp with the least to do.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/cuda/decode_step_sm90.h"
#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_w4a16_strips.h"

namespace nibble::cuda {

inline constexpr int kStepWarps = 16;           // that multiply
inline constexpr int kStepMaxStrips = 32;       // of a block and matrix
inline constexpr int kStepMaxStages = 2048;     // of a block and layer
inline constexpr int kStepMaxLines = 1 << 20;   // of a matrix
inline constexpr int kStepStage = kStripStage;  // K64 blocks
inline constexpr int kStepStageBytes = kStepStage * kStripBytes;

/// What a warp loads at once, kStepStage lines (K64 blocks of a tile) of a strip, and what it does
/// with them. The last stage of a piece reads lines again where fewer are left, so that all loads
/// are alike.
struct StepStage {
  uint32_t where;  // line in the matrix; 20: strip of the tile; 23: first of the lines to multiply;
                   // 25: how many, less one; 27: end of the piece; 28: product
  uint16_t x_block;  // of the first
  uint16_t part;     // place of the piece's sums among the block's parts

  NIBBLE_HOST_DEVICE int line() const { return static_cast<int>(where & (kStepMaxLines - 1)); }
  NIBBLE_HOST_DEVICE int strip() const { return static_cast<int>(where >> 20 & 7); }
  NIBBLE_HOST_DEVICE int first() const { return static_cast<int>(where >> 23 & 3); }
  NIBBLE_HOST_DEVICE int count() const { return static_cast<int>(where >> 25 & 3) + 1; }
  NIBBLE_HOST_DEVICE bool ends_piece() const { return (where >> 27 & 1) != 0; }
  NIBBLE_HOST_DEVICE int product() const { return static_cast<int>(where >> 28); }
};

/// What a thread block has to do in every layer.
struct StepBlock {
  int32_t first_strip[kNumStepProducts];
  int32_t strips[kNumStepProducts];
  // Of each warp's stages of each product, one after another; the end of all.
  uint16_t stage_begin[kStepWarps * kNumStepProducts + 1];
  uint16_t unused[7];
  uint8_t pieces[kNumStepProducts][kStepMaxStrips];  // of each strip
};
static_assert(sizeof(StepStage) == 8 && sizeof(StepBlock) % 16 == 0);

struct StepProductPlan {
  int n = 0, k = 0;
  int strips = 0;
  int k_blocks = 0;
  int max_pieces = 0;  // of a strip: parts are so many apart
};

struct DecodeStepPlan {
  std::array<StepProductPlan, kNumStepProducts> products;
  std::vector<StepBlock> blocks;
  int most_stages = 0;            // of a block; even
  std::vector<StepStage> stages;  // [blocks, most_stages]
  int part_places = 0;            // of a block, at most
};

/// Offsets in a block's shared memory, in bytes. The pool is attention's rings and the matrices',
/// or, in a block that has nothing to attend to, the latter alone.
struct StepShared {
  int x_at[2] = {};  // of products 0 and 2, of products 1 and 3
  int rows_at = 0, parts_at = 0, sums_at = 0, layers_at = 0, block_at = 0, stages_at = 0;
  int attention_at = 0, epoch_at = 0, barriers_at = 0, pool_at = 0;
  int attention_bytes = 0;
  int ring_beside = 0, ring_alone = 0;  // stages of a matrix ring, beside attention's and without
};

inline constexpr int kStepMaxRing = 6;           // stages of a warp's ring
inline constexpr int kStepParameterBytes = 512;  // of attention's parameters, at most
// All of a multiprocessor's, but for the words that the compiler and the system place.
inline constexpr int kStepSharedBytes = 227 * 1024 - 256;

/// Pieces of eight channels of the residual row a thread.
constexpr int step_norms(int hidden) { return hidden <= kStepWarps * 32 * 8 ? 1 : 2; }
/// Stages of attention's rings; of wide models, whose rows take shared memory, fewer.
constexpr int step_attention_stages(int norms) { return norms == 1 ? 3 : 2; }
/// What StepAttention<head_dim, stages> takes (decode_step_attention.cuh).
constexpr int step_attention_bytes(int head_dim, int stages) {
  constexpr int kChains = 4;
  constexpr int kStage = 2 * 4096;  // keys and values
  const int rings = kChains * stages * kStage;
  const int rows = 8 * (head_dim + 8) * 2 + 2 * head_dim * 2 + kChains * 8 * 8;
  const int scores = kChains * stages * (256 / head_dim) * 32 * 8;
  return rings + rows + scores;
}

/// Where decode_step_refusal(shape, multiprocessors) is empty.
DecodeStepPlan plan_decode_step(const DecodeStepShape& shape, int multiprocessors);

/// As above.
StepShared place_step_shared(const DecodeStepShape& shape, const DecodeStepPlan& plan);

/// Thread blocks: every one has a strip of every matrix, since blocks keep up with each other by
/// waiting for what all of them write.
int decode_step_blocks(const DecodeStepShape& shape, int multiprocessors);

}  // namespace nibble::cuda
