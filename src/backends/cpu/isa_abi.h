// What crosses the border between generic code and the ISA files (those compiled with AVX flags).
// Plain data only: an inline function here could be kept by the linker in its AVX form and crash
// older CPUs.
#pragma once

#include <cstdint>

namespace nibble::cpu {

// Rows of x that one micro-kernel call holds in registers; row groups are balanced below this.
inline constexpr int kMaxRowGroup = 6;
// Rows of x that are prepared and multiplied at a time (a multiple of kMaxRowGroup): the weights
// are decoded once per so many rows, which costs under 2 percent.
inline constexpr int kRowBlock = 192;

// One part of a fused matrix times up to kRowBlock rows.
// A group is 4 vectors of output rows (n); lanes are rows of W, K is walked in order.
struct GemmTask {
  const uint8_t* weights;  // packed groups of this part
  const float* alpha;      // one value, multiplies the accumulators
  const void* x;           // packed rows: row groups one after another, each [steps, rows] of
                           // 32-bit lanes (see Activations in gemm_panels.h); on the grid, with
                           // more than one row, [rows, k / 16] records (gemm_grid.h)
  const int32_t* x_rows;   // records only: [rows] which of them each row is, or null: in order.
                           // Where it is given, one row comes as records, too
  const float* x_scales;   // w4a4: packed like x, [k / 16, rows] f32: block scale / 4; on the grid:
                           // its step times 2^kGridShift, where there are no records
  const float* row_scale;  // w4a4: [rows] global activation scale
  const int32_t*
      x_sums;  // packed like x_scales, -12 * the sum of a block of integers, 16-bit words
               // where the format has two blocks a lane; on the grid only for one row
  // On the grid, what rounding took from blocks (gemm_grid.h), [rows, k / 16]: records, or lanes,
  // scales and sums of a single row. Only blocks with a bit in `rest_masks` are filled.
  const uint32_t* rest_lanes;
  const float* rest_scales;
  const int32_t* rest_sums;
  const uint32_t* rest_masks;  // [rows, k / 16 / kRestTile], a bit a block
  int64_t rows;
  int64_t k;  // padded to the kernel's unit
  int64_t n;  // output columns of this part; lanes beyond are not stored
  void* y;    // column 0 of this part
  int64_t y_stride;
  const uint16_t* bias;      // column 0 of this part, or null
  const uint16_t* residual;  // column 0 of this part, or null
  int64_t residual_stride;
  int32_t y_is_f32;
};

using GemmKernel = void (*)(const GemmTask* task, int64_t group_begin, int64_t group_end);

// One symbol per ISA file.
void nvfp4_w4a16_avx2(const GemmTask* task, int64_t group_begin, int64_t group_end);
void nvfp4_w4a16_avx512(const GemmTask* task, int64_t group_begin, int64_t group_end);
void nvfp4_w4a16_avx512bf16(const GemmTask* task, int64_t group_begin, int64_t group_end);
void gemm_bf16_avx2(const GemmTask* task, int64_t group_begin, int64_t group_end);
void gemm_bf16_avx512(const GemmTask* task, int64_t group_begin, int64_t group_end);
void gemm_bf16_avx512bf16(const GemmTask* task, int64_t group_begin, int64_t group_end);
void nvfp4_w4a4_avx2(const GemmTask* task, int64_t group_begin, int64_t group_end);
void nvfp4_w4a4_vnni(const GemmTask* task, int64_t group_begin, int64_t group_end);

// bf16 x[16 * blocks] to FP32 `out` and the largest magnitude of each 16; with a pre-quant scale
// the product is rounded to bf16 first. `out` may be null.
void nvfp4_amax_avx2(
    const uint16_t* x, const float* pre_quant_scale, int64_t blocks, float* out, float* amax);
// E2M1 codes, as int8 of twice the value, of x / divisor: [blocks, 16], and the sum of each block;
// a divisor of 0 gives zeros.
void nvfp4_codes_avx2(
    const float* x, const float* divisors, int64_t blocks, int8_t* codes, int32_t* sums);

// bf16 x[16 * blocks], at most 32 blocks, to integers on a grid per block (gemm_grid.h). Pairs:
// records, per four k's the words (k0, k2), (k1, k3) of int16. Digits: per four k's a word of high
// and a word of low int8 digits, x = 256 * high + low; and -12 * the sum of each block. Returns a
// bit for each block that needs its rounding errors as a second block, and those as bf16 in
// rest[16 * block].
uint32_t nvfp4_grid_pairs_avx2(const uint16_t* x,
                               int64_t blocks,
                               uint32_t* records,
                               uint16_t* rest);
uint32_t nvfp4_grid_digits_avx2(const uint16_t* x,
                                int64_t blocks,
                                uint32_t* words,
                                float* scales,
                                int32_t* sums,
                                uint16_t* rest);

// ---- attention ----

// Queries (a row of one head) that share a KV head and are processed together.
inline constexpr int kMaxQueries = 32;
inline constexpr int kMaxHeadDim = 256;

// Queries [begin, end) of one sequence and one KV head, counted as row * heads_per_kv + head.
// Row r sits at position first_position + r. Strides in elements.
struct AttentionTask {
  const uint16_t* q;  // row 0, first head of the group
  int64_t q_row_stride;
  int64_t q_head_stride;
  const void* k_cache;  // this KV head of page 0: bf16, or e4m3
  const void* v_cache;
  bool is_e4m3;
  int64_t k_page_stride;
  int64_t k_slot_stride;
  int64_t v_page_stride;
  int64_t v_slot_stride;
  const int32_t* pages;  // of this sequence
  int64_t page_size;
  uint16_t* out;  // row 0, first head of the group
  int64_t out_row_stride;
  int64_t out_head_stride;
  int64_t begin;
  int64_t end;  // at most begin + kMaxQueries
  int64_t heads_per_kv;
  int64_t first_position;
  int64_t head_dim;
  float scale;        // of scores
  float value_scale;  // of what comes out
};

void attention_avx2(const AttentionTask* task);
void attention_avx512(const AttentionTask* task);  // in the same bits

// ---- small operations, one row each ----

// The row functions behind SmallOps; scalar, AVX2 and AVX-512 tables exist. Weights are bf16 or
// f32: the other pointer is null. Rows are bf16.
struct SmallOpsRows {
  void (*norm)(const uint16_t* x,
               const uint16_t* weight_bf16,
               const float* weight_f32,
               float eps,
               int64_t width,
               uint16_t* out);
  void (*add)(uint16_t* x, const uint16_t* y, int64_t width);  // x += y
  void (*rotate)(uint16_t* head, const float* cosine, const float* sine, int64_t half);
  void (*silu_mul)(const uint16_t* gate, const uint16_t* up, int64_t width, uint16_t* out);
};

const SmallOpsRows* small_ops_avx2();
const SmallOpsRows* small_ops_avx512();  // in the bits of AVX2

// ---- machine limits ----

// Reads all bytes (a multiple of 256) and returns a value that depends on them.
uint64_t probe_read_avx2(const void* memory, int64_t bytes);
// `rounds` rounds of kProbeChains independent multiply-adds of the kernels' kind in registers.
inline constexpr int kProbeChains = 12;
float probe_fma_avx2(int64_t rounds);        // 16 operations each
float probe_fma_avx512(int64_t rounds);      // 32
float probe_dot_avx512bf16(int64_t rounds);  // 64
int32_t probe_int8_avx2(int64_t rounds);     // 64: maddubs and an add
int32_t probe_int8_vnni(int64_t rounds);     // 128

}  // namespace nibble::cpu
