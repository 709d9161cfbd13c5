#pragma once
// What the decode attention kernels share (attention_decode_paged.cu: any number of sequences,
// attention_decode_few.cu: few): how a sequence is cut into chunks, how a warp takes a stage of
// keys and values, how results are folded. Both use the same instructions for that, so the bits of
// a row do not show which kernel computed it.
//
// Cache is __nv_bfloat16 or uint8_t (e4m3). Codes become f16, which holds them exactly, on the way
// from shared memory into registers; queries and weights are then f16 too.

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/attention_paged.h"
#include "backends/cuda/device/attention.cuh"

namespace nibble::cuda {

inline constexpr int kDecodeWarps = 4;
inline constexpr int kDecodeThreads = kDecodeWarps * 32;
inline constexpr int kDecodeBlocksPerSm = 2;
inline constexpr int kStageBytes = 4096;  // of K, and of V
inline constexpr int kMinChunkShift = 8;  // chunks of 256 tokens at least,
inline constexpr int kMostChunkShift =
    9;  // of 512 at most while that gives no more than max_chunks
inline constexpr float kMinusInfinity = -__builtin_huge_valf();

struct DecodeParams {
  PagedAttention call;
  float scale_log2;
  int page_shift;
  int group;
  int chunks_log2;     // a sequence has as many chunks or fewer up to 512 tokens a chunk
  int max_chunks;      // twice that
  uint32_t* counters;  // [blocks]: chunks that are stored of a head
  float2* summary;     // [blocks, max_chunks, group]: maximum (base 2), sum
  float* partial;      // [blocks, max_chunks, group, head_dim]
};

/// The parameters of a call, its workspace dealt out (attention_decode_workspace_bytes).
DecodeParams decode_params_of(const PagedAttention& call);

/// attention_decode_few.cu
void launch_attention_decode_few(const DecodeParams& params, cudaStream_t stream);

/// How a sequence is cut; a function of its length and the head counts. Chunks are a power of two.
struct Cut {
  int shift;  // of a chunk's tokens
  int count;
  __device__ __forceinline__ int tokens() const { return 1 << shift; }
};

__device__ __forceinline__ Cut cut_of(int length, const DecodeParams& p) {
  const int log2 = 32 - __clz(length - 1);  // rounded up
  const int shift = max(max(kMinChunkShift, log2 - p.chunks_log2 - 1),
                        min(kMostChunkShift, log2 - p.chunks_log2));
  return {shift, (length + (1 << shift) - 1) >> shift};
}

__device__ __forceinline__ int length_of(const DecodeParams& p, int sequence) {
  return sequence < p.call.seqs ? max(p.call.kv_lens[sequence], 0) : 0;
}

/// What scores are multiplied by, for exponentials to base 2, and sums of values.
template <typename Cache>
__device__ __forceinline__ float2 scales_of(const DecodeParams& p) {
  if constexpr (sizeof(Cache) == 1) {
    return make_float2(p.scale_log2 * *p.call.k_scale, *p.call.v_scale);
  } else {
    return make_float2(p.scale_log2, 1.0f);
  }
}

// ---- a stage: tokens whose keys, and values, are 4 KB ----

template <typename Cache, int kDim>
struct DecodeStage {
  static constexpr bool kIsE4m3 = sizeof(Cache) == 1;
  static constexpr int kRowBytes = kDim * static_cast<int>(sizeof(Cache));
  static constexpr int kTokens = kStageBytes / kRowBytes;
  static constexpr int kTiles = kTokens / 8;         // of eight tokens
  static constexpr int kSegments = kRowBytes / 16;   // a row
  static constexpr int kLanesRows = 32 / kSegments;  // rows that a warp copies at once

  /// Where a row keeps a segment of 16 bytes: eight rows of a segment lie in different banks.
  static __device__ __forceinline__ int place(int segment, int row) {
    return kSegments >= 8 ? segment ^ (row & 7) : segment ^ (row >> 1 & 3);
  }

  /// Starts copying the keys and values (or only some of it) of tokens [first, first + kTokens) of
  /// a KV head; zeros from token `end` on (end <= length). By a warp.
  template <bool kKeys = true, bool kValues = true>
  static __device__ __forceinline__ void copy(const DecodeParams& p,
                                              const int32_t* table,
                                              int head,
                                              int first,
                                              int end,
                                              int length,
                                              uint32_t to) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int lane_row = lane / kSegments;
    const int lane_segment = lane % kSegments;
    const int64_t token_bytes = static_cast<int64_t>(p.call.kv_heads) * kRowBytes;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      // Eight tokens lie in one page.
      const int position = first + tile * 8;
      const int inside = min(position, length - 1);
      const int page = table[inside >> p.page_shift];
      const int64_t token =
          (static_cast<int64_t>(page) << p.page_shift) + (inside & (p.call.page_size - 1) & ~7);
      const int64_t offset = token * token_bytes + head * kRowBytes + lane_segment * 16;
      const auto* k = static_cast<const uint8_t*>(p.call.k) + offset;
      const auto* v = static_cast<const uint8_t*>(p.call.v) + offset;
#pragma unroll
      for (int i = 0; i < 8 / kLanesRows; ++i) {
        const int row = i * kLanesRows + lane_row;
        const bool valid = position + row < end;
        const uint32_t at = to + (tile * 8 + row) * kRowBytes + place(lane_segment, row) * 16;
        if constexpr (kKeys) {
          copy_async_16(at, k + row * token_bytes, valid);
        }
        if constexpr (kValues) {
          copy_async_16(at + kStageBytes, v + row * token_bytes, valid);
        }
      }
    }
  }
};

/// The group's queries as A operands. Channels of a step of 16: in order for bf16; for e4m3 a lane
/// takes the four whose codes one register of a key has.
template <typename Cache, int kDim, int kRows>
struct Queries {
  static constexpr int kPasses = kRows / 8;
  uint32_t words[kDim / 16][kRows / 4];

  /// `rows`: of the group's heads, `stride` elements apart.
  __device__ __forceinline__ void load(const __nv_bfloat16* rows, int stride, int group) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < kPasses; ++half) {
      const int head = lane / 4 + half * 8;
      const __nv_bfloat16* row = rows + head * stride;
#pragma unroll
      for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t& word = words[step][i * kPasses + half];
          if constexpr (sizeof(Cache) == 1) {
            word = head < group ? f16_of_bf16(*reinterpret_cast<const uint32_t*>(
                                      row + step * 16 + 4 * (lane % 4) + 2 * i))
                                : 0;
          } else {
            word =
                head < group
                    ? *reinterpret_cast<const uint32_t*>(row + step * 16 + 2 * (lane % 4) + i * 8)
                    : 0;
          }
        }
      }
    }
  }
  __device__ __forceinline__ void operand(int step, uint32_t (&a)[4]) const {
    a[0] = words[step][0];
    a[1] = kPasses == 2 ? words[step][1] : 0;
    a[2] = words[step][kPasses];
    a[3] = kPasses == 2 ? words[step][kPasses + kPasses - 1] : 0;
  }
};

/// Folds a later part into an earlier one: all kernels must do this with the same instructions.
template <int kCount>
__device__ __forceinline__ void fold(float& top,
                                     float& sum,
                                     float (&values)[kCount],
                                     float later_top,
                                     float later_sum,
                                     const float (&later)[kCount]) {
  const float highest = fmaxf(top, later_top);
  const float keep = exp2_fast(top - highest);
  const float add = exp2_fast(later_top - highest);
  top = highest;
  sum = __fmaf_rn(later_sum, add, __fmul_rn(sum, keep));
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = __fmaf_rn(later[i], add, __fmul_rn(values[i], keep));
  }
}

/// A warp's result, rows lane / 4 and, with 16 rows, 8 more. A lane's columns come in pieces of two
/// (bf16) or four (e4m3: of two accumulators, the even and the odd columns of 16).
template <typename Cache, int kDim, int kRows>
struct Result {
  static constexpr bool kIsE4m3 = sizeof(Cache) == 1;
  static constexpr int kHalves = kRows / 8;
  static constexpr int kPiece = kIsE4m3 ? 4 : 2;
  static constexpr int kPieces = kDim / (4 * kPiece);
  float o[kDim / 8][4];
  float top[kHalves];
  float sum[kHalves];

  static __device__ __forceinline__ int column(int piece) {
    return (piece * 4 + static_cast<int>(threadIdx.x) % 4) * kPiece;
  }
  __device__ __forceinline__ float& at(int piece, int half, int j) {
    return kIsE4m3 ? o[piece * 2 + j % 2][half * 2 + j / 2] : o[piece][half * 2 + j];
  }
  __device__ __forceinline__ float at(int piece, int half, int j) const {
    return kIsE4m3 ? o[piece * 2 + j % 2][half * 2 + j / 2] : o[piece][half * 2 + j];
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0f;
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      top[half] = kMinusInfinity;
      sum[half] = 0.0f;
    }
  }

  // Rows are a multiple of all banks apart: columns are spread.
  static __device__ __forceinline__ float* place(float* rows, int row, int column) {
    return rows + row * kDim + ((column / 8) ^ (row & 7)) * 8 + column % 8;
  }
  template <typename To>
  __device__ __forceinline__ void store(To* to, int piece, int half) const {
    if constexpr (kIsE4m3) {
      *reinterpret_cast<float4*>(to) = make_float4(
          at(piece, half, 0), at(piece, half, 1), at(piece, half, 2), at(piece, half, 3));
    } else {
      *reinterpret_cast<float2*>(to) = make_float2(at(piece, half, 0), at(piece, half, 1));
    }
  }
  /// To rows in shared memory.
  __device__ __forceinline__ void store(float* rows, float2* sums, int group) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = half * 8 + lane / 4;
      if (row < group) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          store(place(rows, row, column(i)), i, half);
        }
        sums[row] = make_float2(top[half], sum[half]);
      }
    }
  }
  /// Becomes the fold of what is stored and this.
  __device__ __forceinline__ void fold_after(float* rows, const float2* sums, int group) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = half * 8 + lane / 4;
      if (row < group) {
        float earlier_top = sums[row].x;
        float earlier_sum = sums[row].y;
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          float earlier[kPiece];
          float later[kPiece];
          const float* from = place(rows, row, column(i));
          if constexpr (kIsE4m3) {
            const float4 v = *reinterpret_cast<const float4*>(from);
            earlier[0] = v.x;
            earlier[1] = v.y;
            earlier[2] = v.z;
            earlier[3] = v.w;
          } else {
            const float2 v = *reinterpret_cast<const float2*>(from);
            earlier[0] = v.x;
            earlier[1] = v.y;
          }
#pragma unroll
          for (int j = 0; j < kPiece; ++j) {
            later[j] = at(i, half, j);
          }
          float t = earlier_top;
          float u = earlier_sum;
          fold(t, u, earlier, top[half], sum[half], later);
#pragma unroll
          for (int j = 0; j < kPiece; ++j) {
            at(i, half, j) = earlier[j];
          }
        }
        float none[1] = {0.0f};
        fold(earlier_top, earlier_sum, none, top[half], sum[half], none);
        top[half] = earlier_top;
        sum[half] = earlier_sum;
      }
    }
  }
  /// Sums of a row's weights over the four lanes that share it; once, after the last stage.
  __device__ __forceinline__ void add_up() {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
    }
  }
};

/// Scores of a stage whose keys are at `k_stage`, [row lane / 4, and 8 more; two tokens] a tile.
template <typename Cache, int kDim, int kRows>
__device__ __forceinline__ void score_stage(const Queries<Cache, kDim, kRows>& q,
                                            uint32_t k_stage,
                                            float (&s)[DecodeStage<Cache, kDim>::kTiles][4]) {
  using Stage = DecodeStage<Cache, kDim>;
  constexpr int kTiles = Stage::kTiles;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    s[tile][0] = s[tile][1] = s[tile][2] = s[tile][3] = 0.0f;
  }
  if constexpr (Stage::kIsE4m3) {
    // Four segments of eight tokens a load; a register has four channels of a token.
    const int row = lane & 7;
#pragma unroll
    for (int four = 0; four < kDim / 64; ++four) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int segment = Stage::place(four * 4 + lane / 8, row);
        const uint4 b = load_matrices(k_stage + (tile * 8 + row) * Stage::kRowBytes + segment * 16);
        const uint32_t codes[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t a[4];
          q.operand(four * 4 + i, a);
          mma_m16n8k16_f16(s[tile], a, f16_of_e4m3(codes[i]), f16_of_e4m3(codes[i] >> 16));
        }
      }
    }
  } else {
    const int k_row = (lane & 7) + (lane >= 16 ? 8 : 0);
    const int k_half = (lane >> 3) & 1;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      uint32_t a[4];
      q.operand(step, a);
#pragma unroll
      for (int pair = 0; pair < kTiles / 2; ++pair) {
        const int segment = Stage::place(step * 2 + k_half, k_row);
        const uint4 b =
            load_matrices(k_stage + (pair * 16 + k_row) * Stage::kRowBytes + segment * 16);
        mma_m16n8k16(s[pair * 2], a, b.x, b.y);
        mma_m16n8k16(s[pair * 2 + 1], a, b.z, b.w);
      }
    }
  }
}

/// Takes a stage with these scores, whose values are at `v_stage`, into top, sum and the columns of
/// `o`: those of steps [first, first + kSteps) of 16 bytes of a row's values each way, i.e. of
/// kSteps / (row bytes / 32) of all columns. `left` of its tokens exist, or more.
template <typename Cache, int kDim, int kRows, int kSteps>
__device__ __forceinline__ void weigh_stage(
    float (&s)[DecodeStage<Cache, kDim>::kTiles][4],
    uint32_t v_stage,
    int first,
    int left,
    float scale_log2,
    float (&o)[kDim / 8 * kSteps / (DecodeStage<Cache, kDim>::kSegments / 2)][4],
    float (&top)[kRows / 8],
    float (&sum)[kRows / 8]) {
  using Stage = DecodeStage<Cache, kDim>;
  constexpr int kTiles = Stage::kTiles;
  constexpr int kPasses = kRows / 8;
  constexpr int kColumns = kDim / 8 * kSteps / (Stage::kSegments / 2);  // tiles of eight
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (left < Stage::kTokens) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (tile * 8 + 2 * (lane % 4) + i % 2 >= left) {
          s[tile][i] = kMinusInfinity;
        }
      }
    }
  }
  float keep[kPasses];
#pragma unroll
  for (int half = 0; half < kPasses; ++half) {
    float highest = fmaxf(s[0][half * 2], s[0][half * 2 + 1]);
#pragma unroll
    for (int tile = 1; tile < kTiles; ++tile) {
      highest = fmaxf(highest, fmaxf(s[tile][half * 2], s[tile][half * 2 + 1]));
    }
    highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
    highest = fmaxf(top[half], highest * scale_log2);
    keep[half] = exp2_fast(top[half] - highest);
    top[half] = highest;
    float total = 0.0f;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = s[tile][half * 2 + i];
        x = exp2_fast(__fmaf_rn(x, scale_log2, -highest));
        total += x;
      }
    }
    sum[half] = __fmaf_rn(sum[half], keep[half], total);
  }
  bool moved = keep[0] != 1.0f;
  if constexpr (kPasses == 2) {
    moved = moved || keep[1] != 1.0f;
  }
  if (__any_sync(~0u, moved)) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      o[i][0] *= keep[0];
      o[i][1] *= keep[0];
      if constexpr (kPasses == 2) {
        o[i][2] *= keep[1];
        o[i][3] *= keep[1];
      }
    }
  }
  const auto pack = [](float low, float high) {
    return Stage::kIsE4m3 ? pack_f16(low, high) : pack_bf16(low, high);
  };
  const int v_row = (lane & 7) + (lane & 8);
  const int v_half = lane >> 4;
#pragma unroll
  for (int pair = 0; pair < kTiles / 2; ++pair) {
    uint32_t a[4];
    a[0] = pack(s[pair * 2][0], s[pair * 2][1]);
    a[2] = pack(s[pair * 2 + 1][0], s[pair * 2 + 1][1]);
    a[1] = kPasses == 2 ? pack(s[pair * 2][2], s[pair * 2][3]) : 0;
    a[3] = kPasses == 2 ? pack(s[pair * 2 + 1][2], s[pair * 2 + 1][3]) : 0;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int segment = Stage::place((first + i) * 2 + v_half, v_row);
      const uint4 b =
          load_matrices_transposed(v_stage + (pair * 16 + v_row) * Stage::kRowBytes + segment * 16);
      if constexpr (Stage::kIsE4m3) {
        // A register has two channels of two tokens; apart, they are columns of two products.
        const uint32_t codes[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t first = __byte_perm(codes[j * 2], 0, 0x3120);
          const uint32_t second = __byte_perm(codes[j * 2 + 1], 0, 0x3120);
          float(*both)[4] = o + (i * 2 + j) * 2;
          mma_m16n8k16_f16(both[0], a, f16_of_e4m3(first), f16_of_e4m3(second));
          mma_m16n8k16_f16(both[1], a, f16_of_e4m3(first >> 16), f16_of_e4m3(second >> 16));
        }
      } else {
        mma_m16n8k16(o[i * 2], a, b.x, b.y);
        mma_m16n8k16(o[i * 2 + 1], a, b.z, b.w);
      }
    }
  }
}

/// Takes a stage whose keys are at `k_stage`, values behind them, into the result; `left` of its
/// tokens exist, or more.
template <typename Cache, int kDim, int kRows>
__device__ __forceinline__ void attend_stage(const Queries<Cache, kDim, kRows>& q,
                                             uint32_t k_stage,
                                             int left,
                                             float scale_log2,
                                             Result<Cache, kDim, kRows>& result) {
  using Stage = DecodeStage<Cache, kDim>;
  float s[Stage::kTiles][4];
  score_stage(q, k_stage, s);
  weigh_stage<Cache, kDim, kRows, Stage::kSegments / 2>(
      s, k_stage + kStageBytes, 0, left, scale_log2, result.o, result.top, result.sum);
}

// ---- rows of the result ----

template <int kDim>
__device__ __forceinline__ __nv_bfloat16* out_row(const DecodeParams& p, int sequence, int head) {
  return static_cast<__nv_bfloat16*>(p.call.out) +
         (static_cast<int64_t>(sequence) * p.call.heads + head) * kDim;
}

/// Four columns as bf16; v_scale is 1 or the scale of the stored values.
__device__ __forceinline__ uint2 finish_columns(const float (&values)[4],
                                                float sum,
                                                float v_scale) {
  const float inverse = v_scale / sum;
  return make_uint2(pack_bf16(values[0] * inverse, values[1] * inverse),
                    pack_bf16(values[2] * inverse, values[3] * inverse));
}

/// Where four finished columns of a head go: memory that the next kernel reads.
template <int kDim>
struct RowsToMemory {
  __device__ __forceinline__ void store(
      const DecodeParams& p, int sequence, int head, int column, const uint2& columns) const {
    *reinterpret_cast<uint2*>(out_row<kDim>(p, sequence, head) + column) = columns;
  }
};

/// Barrier of the threads that attend together; a kernel may have others.
__device__ __forceinline__ void decode_team_sync() { named_barrier_sync(1, kDecodeThreads); }

/// Rows of empty sequences are zeros.
template <int kDim>
__device__ void clear_empty_rows(const DecodeParams& p) {
  for (int s = static_cast<int>(blockIdx.x); s < p.call.seqs; s += static_cast<int>(gridDim.x)) {
    if (p.call.kv_lens[s] <= 0) {
      wait_for_previous_kernel();
      auto* out = reinterpret_cast<uint32_t*>(out_row<kDim>(p, s, 0));
      for (int i = static_cast<int>(threadIdx.x); i < p.call.heads * kDim / 2;
           i += kDecodeThreads) {
        out[i] = 0;
      }
    }
  }
}

/// After a block has stored its part of a head, `mine` of `count` chunks, in slots from
/// `first_slot` on: the last block to come here folds the parts. The first slot holds what was
/// folded already, `folded` chunks; the others one each. By all threads.
template <int kDim, typename Rows = RowsToMemory<kDim>>
__device__ void finish_if_last(const DecodeParams& p,
                               int sequence,
                               int kv_head,
                               int count,
                               int mine,
                               int first_slot,
                               int folded,
                               float v_scale,
                               const Rows& rows = {}) {
  constexpr int kOwn = 4;
  constexpr int kBatch = 8;  // parts whose loads are in flight
  __shared__ int is_last;
  decode_team_sync();
  if (threadIdx.x == 0) {
    const auto before = add_acquire_release(p.counters + first_slot, static_cast<uint32_t>(mine));
    is_last = static_cast<int>(before) + mine == count ? 1 : 0;
    if (is_last != 0) {
      p.counters[first_slot] = 0;
    }
  }
  decode_team_sync();
  if (is_last == 0) {
    return;
  }
  const int64_t first = static_cast<int64_t>(first_slot) * p.max_chunks;
  for (int i = static_cast<int>(threadIdx.x) * kOwn; i < p.group * kDim;
       i += kDecodeThreads * kOwn) {
    const int head = i / kDim;
    const float* partial = p.partial + first * p.group * kDim + i;
    const float2* summary = p.summary + first * p.group + head;
    const float4 begin = __ldcg(reinterpret_cast<const float4*>(partial));
    float values[kOwn] = {begin.x, begin.y, begin.z, begin.w};
    float2 all = __ldcg(summary);
    for (int chunk = folded; chunk < count; chunk += kBatch) {
      float4 later[kBatch];
      float2 of_chunk[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int64_t from = min(chunk + j, count - 1);
        later[j] = __ldcg(reinterpret_cast<const float4*>(partial + from * p.group * kDim));
        of_chunk[j] = __ldcg(summary + from * p.group);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (chunk + j < count) {
          const float v[kOwn] = {later[j].x, later[j].y, later[j].z, later[j].w};
          fold(all.x, all.y, values, of_chunk[j].x, of_chunk[j].y, v);
        }
      }
    }
    rows.store(
        p, sequence, kv_head * p.group + head, i % kDim, finish_columns(values, all.y, v_scale));
  }
}

}  // namespace nibble::cuda
