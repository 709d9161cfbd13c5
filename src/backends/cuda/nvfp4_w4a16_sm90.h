// Hopper NVFP4 W4A16 product: how a call is cut (plain C++, no device needed) and its launch.
//
// One summation order per (n, k), see nvfp4_w4a16_cuts.h: a piece of K is accumulated in K16 steps
// by one accumulator, the pieces of a row are added in order. Every tile shape keeps that order, so
// a row's bits depend neither on the number of rows nor on the tile chosen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct CUstream_st;

namespace nibble::cuda {

/// Tile shapes, all of 128 features: tokens of the tile, and how the work is dealt out.
enum class W4A16Tile : uint8_t {
  Tokens8,   // mma.sync; one unit of the cuts a block, two blocks an SM
  Tokens16,  // wgmma from here on
  Tokens32,
  Tokens64,
  Tokens128,       // two units a block (more where there are fewer SMs), one block an SM
  Tokens128Whole,  // whole tiles, persistent
  Tokens32Slices,  // as Tokens32, parts added by all blocks of a tile and not by the last
  Tokens64Slices,
  Tokens64Whole,   // as Tokens128Whole, where those are too few to fill the device
  Tokens128Mixed,  // as Tokens128Whole, but the tiles of the last wave are shared by pieces of K
  Strips8  // up to 8 tokens, whole rows a block: no exchange between blocks (nvfp4_w4a16_strips.h)
};
inline constexpr int kNumW4A16Tiles = 11;

constexpr bool is_whole(W4A16Tile tile) {
  return tile == W4A16Tile::Tokens128Whole || tile == W4A16Tile::Tokens64Whole ||
         tile == W4A16Tile::Tokens128Mixed;
}

struct W4A16Plan {
  W4A16Tile tile = W4A16Tile::Tokens8;
  int tokens = 8;           // of a tile
  int units_per_block = 1;  // shared tiles only
  int token_group = 1;      // whole tiles: token tiles that are walked together, for L2 reuse
  int64_t workspace_bytes = 0;
  // Above 0: so many rows are taken before, in a launch of whole tiles of 128 that fills the device
  // well, and the plan is for the rest.
  int64_t whole_rows = 0;
  // Tokens128Mixed: so many tiles are taken whole, so many after them shared, by so many blocks.
  int first_tiles = 0;
  int line_tiles = 0;
  int blocks = 0;
  // Blocks have their part of a shared tile before their whole tiles, but for the one with its last
  // pieces, which has them after and adds them to the others' sums. Otherwise all have them after.
  bool chain = false;
  // sm80 only: the short ring of devices with little shared memory, for tests on large ones.
  bool few_stages = false;
};

/// The tile for m rows on a GPU with `multiprocessors`. Pure: the measured table of the machine
/// (nvfp4_w4a16_tiles.h) where it has the matrix, rules fitted to it elsewhere.
W4A16Plan plan_w4a16(int64_t m, int64_t n, int64_t k, int multiprocessors);

/// A plan with the given tile, for measurements and tests; false when (m, n, k) does not allow it.
bool plan_w4a16_as(
    W4A16Tile tile, int64_t m, int64_t n, int64_t k, int multiprocessors, W4A16Plan* plan);

/// Enough for every m up to max_rows, whatever the GPU.
int64_t w4a16_workspace_bytes(int64_t max_rows, int64_t n, int64_t k);
/// Words that must be zero before the first call and are zero after every call; one set a matrix.
int64_t w4a16_num_counters(int64_t n);

const char* to_string(W4A16Tile tile);
/// "t64s", or "t128w 896 + t128" where the rows are split.
std::string describe(const W4A16Plan& plan);

/// y[m, n] = (x[m, k] * w[n, k]^T) * row_multiplier[n] + bias[n] + residual[m, n]; device pointers.
struct W4A16Args {
  const void* x = nullptr;                // [m, k] bf16, row stride ldx
  const void* packed = nullptr;           // nvfp4_layout.h
  const float* row_multiplier = nullptr;  // [padded n] f32: global scale * 2^7
  void* y = nullptr;                      // [m, n] bf16 or f32, row stride ldy
  const void* bias = nullptr;             // [n] bf16 or null
  void* workspace = nullptr;              // plan.workspace_bytes, 16-byte aligned, any contents
  uint32_t* counters = nullptr;           // [w4a16_num_counters(n)]
  const void* residual = nullptr;         // [m, n] bf16, row stride ldr, or null; may be y
  int64_t m = 0, n = 0, k = 0;
  int64_t ldx = 0, ldy = 0, ldr = 0;  // elements; ldx a multiple of 8
  bool y_is_f32 = false;
  // [m] f32 or null: y is multiplied by it, before bias and residual (quantized activations).
  const float* token_multiplier = nullptr;
  // Rows of w are gate and up in turn (pack_nvfp4 with a row step of 2): y is [m, n / 2] bf16,
  // silu(gate) * up of the bf16 values; no residual. A limit above 0 cuts gate from above and up on
  // both sides.
  bool swiglu = false;
  float swiglu_limit = 0.0f;
  bool overlap =
      true;  // programmatic dependent launch: weights are read before the previous kernel ends
};

/// Asynchronous, no allocation, graph-capturable. Throws SystemError when a CUDA call fails.
void launch_w4a16_sm90(const W4A16Plan& plan, const W4A16Args& args, CUstream_st* stream);
/// What it calls for the other outputs.
void launch_w4a16_sm90_scaled(const W4A16Plan& plan, const W4A16Args& args, CUstream_st* stream);
void launch_w4a16_sm90_swiglu(const W4A16Plan& plan, const W4A16Args& args, CUstream_st* stream);
/// What it calls for W4A16Tile::Strips8, whatever the output.
void launch_w4a16_sm90_strips(const W4A16Args& args, CUstream_st* stream);

}  // namespace nibble::cuda
