// How the kernel of a whole decode step deals out the products of a layer: plain C++, no device
// needed.
//
// A strip is 16 features over all of K (nvfp4_w4a16_strips.h). A thread block has the same strips
// of every layer's matrix; the pieces of K of its strips (nvfp4_w4a16_cuts.h: they are part of the
// summation order) are dealt to its warps so that all have the same to do. What is left of a warp's
// share when no whole piece fits takes the last blocks of one, whose first blocks the next warp
// multiplies before anything else: by the time they are needed their sums are there, and the order
// of additions is that of the whole piece (McNaughton, Scheduling with deadlines and loss
// functions, 1959).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/cuda/decode_step_sm90.h"
#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_w4a16_strips.h"

namespace nibble::cuda {

inline constexpr int kStepWarps = 16;      // that multiply
inline constexpr int kStepMaxStrips = 32;  // of a block and matrix
inline constexpr int kStepMaxRuns = 2047;  // of a block and layer
// Of a matrix: 32 bits of bytes.
inline constexpr int64_t kStepMaxLines = (int64_t{1} << 32) / kTileRecordBytes;
inline constexpr int kStepStage = kStripStage;  // K64 blocks
inline constexpr int kStepStageBytes = kStepStage * kStripBytes;

inline constexpr int kStepBlockX = 128;  // bytes of x of a K64 block

/// A piece of a strip, or a part of one, as a warp takes it: in stages, each kStepStage lines (K64
/// blocks of a tile) that are loaded at once. All stages but the first are used whole; the first
/// may begin in lines that are not needed, so that all loads are alike.
struct StepRun {
  uint32_t codes;   // of the first stage, where in the matrix, in bytes, a multiple of 256; 3:
                    // product; 5: the warp's last run of a layer
  int16_t scales;   // bytes from the codes
  uint16_t stages;  // at least one
  uint16_t x_at;    // x of the first line to multiply, in bytes
  uint16_t part;    // place of the piece's sums among the block's parts
  uint16_t what;    // of the first stage, first of the lines to multiply; 2: how many, less one; 4:
                    // goes on with the sums that the next warp left; 5: leaves its sums to the warp
                    // before
  int16_t advance;  // bytes to the run that is loaded next, in this table

  NIBBLE_HOST_DEVICE int product() const { return static_cast<int>(codes >> 3 & 3); }
  NIBBLE_HOST_DEVICE bool is_last() const { return (codes >> 5 & 1) != 0; }
  NIBBLE_HOST_DEVICE uint32_t codes_at() const { return codes & ~uint32_t{255}; }
  NIBBLE_HOST_DEVICE int x_block() const { return x_at / kStepBlockX; }
  NIBBLE_HOST_DEVICE int first() const { return what & 3; }
  NIBBLE_HOST_DEVICE int first_count() const { return (what >> 2 & 3) + 1; }
  NIBBLE_HOST_DEVICE bool takes_over() const { return (what >> 4 & 1) != 0; }
  NIBBLE_HOST_DEVICE bool hands_on() const { return (what >> 5 & 1) != 0; }
  /// K64 blocks.
  NIBBLE_HOST_DEVICE int count() const { return first_count() + (stages - 1) * kStepStage; }
};

/// What a thread block has to do in every layer.
struct StepBlock {
  int32_t first_strip[kNumStepProducts];
  int32_t strips[kNumStepProducts];
  // Of each warp's runs of each product, one after another; the end of all.
  uint16_t run_begin[kStepWarps * kNumStepProducts + 1];
  uint16_t unused[7];
  uint8_t pieces[kNumStepProducts][kStepMaxStrips];  // of each strip
};
static_assert(sizeof(StepRun) == 16 && sizeof(StepBlock) % 16 == 0);

struct StepProductPlan {
  int n = 0, k = 0;
  int strips = 0;
  int k_blocks = 0;
};

/// What memory depends on: worked out at every launch, so without a plan. Upper bounds where the
/// deal decides.
struct DecodeStepSizes {
  int blocks = 0;
  std::array<int, kNumStepProducts> max_pieces{};
  int most_strips = 0;  // of a block and matrix
  int part_places = 0;  // of a block
  int most_runs = 0;    // of a block and layer
};

struct DecodeStepPlan {
  DecodeStepSizes sizes;
  std::array<StepProductPlan, kNumStepProducts> products;
  std::vector<StepBlock> blocks;
  std::vector<StepRun> runs;  // [blocks, most_runs]
};

/// Offsets in a block's shared memory, in bytes. The pool is attention's rings and the matrices',
/// or, in a block that has nothing to attend to, the latter alone.
struct StepShared {
  int x_at[2] = {};  // of products 0 and 2, of products 1 and 3
  int turns_at = 0;  // of each warp: the last turn whose sums the next warp left to it
  int rows_at = 0, parts_at = 0, sums_at = 0, block_at = 0, runs_at = 0;
  int matrices_at = 0;  // of all layers
  int layers_at = 0;    // kStepLayerBytes each: the layer at hand and the next
  int attention_at = 0, words_at = 0, barriers_at = 0, pool_at = 0;
  int attention_bytes = 0;
  int more_stages = 0;  // of a chain of attention, in the place of both x and the parts: 0, 1
  int ring_beside = 0, ring_alone = 0;  // stages of a matrix ring, beside attention's and without
};

inline constexpr int kStepMaxRing = 5;           // stages of a warp's ring
inline constexpr int kStepMinRing = 2;           // the next one is awaited while one is at hand
inline constexpr int kStepParameterBytes = 512;  // of attention's parameters, at most
inline constexpr int kStepLayerBytes = 128;
static_assert(sizeof(DecodeStepLayer) <= kStepLayerBytes);
/// Words of four bytes from words_at on.
// NOLINTBEGIN(readability-identifier-naming): indices, used as the constants they are
enum StepWord {
  kWordEpoch,      // layers before this step
  kWordAttends,    // whether the block does
  kWordRing,       // stages of its rings
  kWordAsksAhead,  // whether it asks for lines in the L2 before they are due
  kNumStepWords
};
// NOLINTEND(readability-identifier-naming)
inline constexpr int kStepBarriers = 2;  // for norms' weights, for rows' multipliers
// All of a multiprocessor's, but for the words that the compiler and the system place.
inline constexpr int kStepSharedBytes = 227 * 1024 - 256;

/// Pieces of eight channels of the residual row a thread.
constexpr int step_norms(int hidden) { return hidden <= kStepWarps * 32 * 8 ? 1 : 2; }
inline constexpr int kStepChains = 4;  // of attention
/// A stage of every chain: keys and values; scores.
inline constexpr int kStepMoreBytes = kStepChains * 2 * 4096;
constexpr int step_more_score_bytes(int head_dim) {
  return kStepChains * (256 / head_dim) * 32 * 8;
}
/// Stages of attention's rings; of wide models, whose rows take shared memory, fewer.
constexpr int step_attention_stages(int norms) { return norms == 1 ? 2 : 1; }
/// Pages of a block's first chunk that are looked up once a step.
inline constexpr int kStepKnownPages = 64;
/// What StepAttention<head_dim, stages> takes (decode_step_attention.cuh).
constexpr int step_attention_bytes(int head_dim, int stages) {
  const int rounds = stages * (kStepMoreBytes + step_more_score_bytes(head_dim));
  const int rows = 8 * (head_dim + 8) * 2 + 2 * head_dim * 2 + kStepChains * 8 * 8;
  // Norms, angles, the token, pages.
  const int known = 2 * head_dim * 2 + head_dim * 4 + 16 + kStepKnownPages * 4;
  return rounds + rows + known;
}

/// Where decode_step_refusal(shape, multiprocessors) is empty.
DecodeStepSizes decode_step_sizes(const DecodeStepShape& shape, int multiprocessors);
DecodeStepPlan plan_decode_step(const DecodeStepShape& shape, int multiprocessors);

/// As above.
StepShared place_step_shared(const DecodeStepShape& shape, const DecodeStepSizes& sizes);

/// Thread blocks: every one has a strip of every matrix, since blocks keep up with each other by
/// waiting for what all of them write.
int decode_step_blocks(const DecodeStepShape& shape, int multiprocessors);

}  // namespace nibble::cuda
