#pragma once
// The W4A16 kernels' common parameters, and how accumulators become outputs.

#include <cstdint>

#include <cuda_bf16.h>

#include "backends/cuda/device/activation.cuh"
#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_w4a16_cuts.h"
#include "backends/cuda/nvfp4_w4a16_sm90.h"
#include "base/check.h"

namespace nibble::cuda {

/// What becomes of y = x W^T: separate kernels, because registers are short in the epilogue.
enum class W4A16Output : uint8_t {
  Plain,        // y * row multiplier + bias + residual
  TokenScaled,  // the same with a multiplier a token (quantized activations)
  SwiGlu        // rows are gate, up, gate, up, ...: silu(gate) * up, half as many features
};

/// The cuts as kernels use them.
struct W4A16DeviceCuts : W4A16Cuts {
  FastDivisor by_k_blocks, by_units, by_total;

  W4A16DeviceCuts() = default;
  explicit W4A16DeviceCuts(const W4A16Cuts& cuts)
      : W4A16Cuts(cuts), by_k_blocks(k_blocks), by_units(units), by_total(total()) {}
  __device__ __forceinline__ int unit_begin(int unit) const {
    return by_units.divide(static_cast<uint32_t>(unit) * static_cast<uint32_t>(total()));
  }
  __device__ __forceinline__ int unit_of(int block) const {
    return by_total.divide(static_cast<uint32_t>(block + 1) * static_cast<uint32_t>(units) - 1);
  }
  __device__ __forceinline__ int row_tile_of(int block) const { return by_k_blocks.divide(block); }
};

struct W4A16Params {
  const uint8_t* packed;
  const float* row_multiplier;
  const float* token_multiplier;  // [m], TokenScaled only
  void* y;
  const __nv_bfloat16* bias;
  const __nv_bfloat16* residual;
  uint8_t* workspace;  // partial sums, slots of 512 * kTokens bytes
  uint32_t* counters;  // [token_tiles, row_tiles], zero between kernels
  int64_t ldy, ldr;
  int m, n;
  W4A16DeviceCuts cuts;
  int units_per_block;
  FastDivisor by_units_per_block;
  int token_tiles;
  int token_group;
  FastDivisor by_group, by_group_tokens, by_last_tokens;  // tiles and token tiles of a group
  // Whole tiles: so many, and the line of those after them, which are shared.
  int first_tiles;
  W4A16DeviceCuts line;
  int line_pieces;  // of a tile
  bool y_is_f32;
  bool pairs_aligned;  // n, ldy and ldr even: two features are stored at once
  float swiglu_limit;  // 0: none
};

/// The parameters that are the call's, whatever the kernel and its tiles.
inline void fill_common(const W4A16Args& args, W4A16Params* params) {
  const auto aligned = [](const void* pointer, uintptr_t bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
  };
  params->packed = static_cast<const uint8_t*>(args.packed);
  params->row_multiplier = args.row_multiplier;
  params->token_multiplier = args.token_multiplier;
  params->y = args.y;
  params->bias = static_cast<const __nv_bfloat16*>(args.bias);
  params->residual = static_cast<const __nv_bfloat16*>(args.residual);
  params->workspace = static_cast<uint8_t*>(args.workspace);
  params->counters = args.counters;
  params->ldy = args.ldy;
  params->ldr = args.ldr;
  params->m = static_cast<int>(args.m);
  params->n = static_cast<int>(args.n);
  params->cuts = W4A16DeviceCuts(w4a16_cuts(args.n, args.k));
  params->y_is_f32 = args.y_is_f32;
  params->pairs_aligned = args.n % 2 == 0 && args.ldy % 2 == 0 && args.ldr % 2 == 0 &&
                          aligned(args.y, args.y_is_f32 ? 8 : 4) && aligned(args.residual, 4);
  params->swiglu_limit = args.swiglu_limit;
}

/// How the tiles are dealt out; fill_common() comes first.
inline void fill_tiles(const W4A16Plan& plan, W4A16Params* params) {
  params->units_per_block = plan.units_per_block;
  params->by_units_per_block = FastDivisor(plan.units_per_block);
  params->token_tiles = static_cast<int>(ceil_div(params->m, plan.tokens));
  params->token_group = plan.token_group;
  params->by_group = FastDivisor(params->cuts.row_tiles * plan.token_group);
  params->by_group_tokens = FastDivisor(plan.token_group);
  params->by_last_tokens = FastDivisor(params->token_tiles % plan.token_group);
  params->line_pieces = params->cuts.units / params->cuts.row_tiles;
  params->first_tiles = plan.tile == W4A16Tile::Tokens128Mixed
                            ? plan.first_tiles
                            : params->cuts.row_tiles * params->token_tiles;
  params->line = W4A16DeviceCuts({.row_tiles = plan.line_tiles,
                                  .k_blocks = params->cuts.k_blocks,
                                  .units = plan.line_tiles * params->line_pieces});
}

/// What every kernel demands of a call.
inline void check_w4a16_args(const W4A16Plan& plan, const W4A16Args& args) {
  CHECK(args.k % 8 == 0 && args.ldx % 8 == 0, "x rows must be a multiple of 16 bytes");
  CHECK(plan.workspace_bytes == 0 || (args.workspace != nullptr && args.counters != nullptr),
        "this plan needs a workspace of ",
        plan.workspace_bytes,
        " bytes and counters");
  CHECK(args.m < (1 << 30) && args.n < (1 << 30), "sizes beyond 32 bits");
  CHECK(!args.swiglu || (args.n % 2 == 0 && !args.y_is_f32 && args.residual == nullptr &&
                         args.token_multiplier == nullptr),
        "swiglu takes pairs of rows and gives bf16");
}

__device__ __forceinline__ float bf16_to_float(__nv_bfloat16 v) { return __bfloat162float(v); }

/// Where a thread's four accumulators of an 8-token chunk go: two features of two tokens.
template <W4A16Output kOutput>
struct W4A16Store {
  static constexpr bool kScaled = kOutput == W4A16Output::TokenScaled;
  static constexpr bool kSwiGlu = kOutput == W4A16Output::SwiGlu;
  int feature;  // first of two
  float multiplier[2];
  float bias[2];

  __device__ __forceinline__ void load(const W4A16Params& p, int row) {
    feature = row;
    multiplier[0] = __ldg(p.row_multiplier + row);  // padded to whole tiles
    multiplier[1] = __ldg(p.row_multiplier + row + 1);
    bias[0] = p.bias != nullptr && row < p.n ? bf16_to_float(p.bias[row]) : 0.0f;
    bias[1] = p.bias != nullptr && row + 1 < p.n ? bf16_to_float(p.bias[row + 1]) : 0.0f;
  }

  /// Keeps the compiler from working out values before this point.
  __device__ __forceinline__ void pin() {
    asm volatile("" : "+f"(multiplier[0]), "+f"(multiplier[1]));
  }

  __device__ __forceinline__ float scale(const W4A16Params& p, int token) const {
    return kScaled ? __ldg(p.token_multiplier + token) : 1.0f;
  }
  /// Accumulator of feature i (0 or 1) to value; `by` is scale(token).
  __device__ __forceinline__ float value(float v, int i, float by) const {
    return (kScaled ? v * by : v) * multiplier[i] + bias[i];
  }
  /// Gate and up as bf16, as an unfused pair of kernels would pass them on.
  __device__ __forceinline__ __nv_bfloat16 gated(float limit, float gate, float up) const {
    return __float2bfloat16_rn(silu_mul(bf16_to_float(__float2bfloat16_rn(value(gate, 0, 1.0f))),
                                        bf16_to_float(__float2bfloat16_rn(value(up, 1, 1.0f))),
                                        limit));
  }

  __device__ __forceinline__ void store_pair(const W4A16Params& p,
                                             int token,
                                             float v0,
                                             float v1) const {
    if (token >= p.m || feature >= p.n) {
      return;
    }
    if constexpr (kSwiGlu) {
      static_cast<__nv_bfloat16*>(p.y)[token * p.ldy + feature / 2] = gated(p.swiglu_limit, v0, v1);
      return;
    }
    const float by = scale(p, token);
    v0 = value(v0, 0, by);
    v1 = value(v1, 1, by);
    const int64_t at = token * p.ldy + feature;
    if (p.pairs_aligned) {
      if (p.residual != nullptr) {
        const __nv_bfloat162 r =
            *reinterpret_cast<const __nv_bfloat162*>(p.residual + token * p.ldr + feature);
        v0 += bf16_to_float(r.x);
        v1 += bf16_to_float(r.y);
      }
      if (p.y_is_f32) {
        *reinterpret_cast<float2*>(static_cast<float*>(p.y) + at) = make_float2(v0, v1);
      } else {
        *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(p.y) + at) =
            __floats2bfloat162_rn(v0, v1);
      }
      return;
    }
    const int count = min(2, p.n - feature);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i < count) {
        float v = i == 0 ? v0 : v1;
        if (p.residual != nullptr) {
          v += bf16_to_float(p.residual[token * p.ldr + feature + i]);
        }
        if (p.y_is_f32) {
          static_cast<float*>(p.y)[at + i] = v;
        } else {
          static_cast<__nv_bfloat16*>(p.y)[at + i] = __float2bfloat16_rn(v);
        }
      }
    }
  }

  __device__ __forceinline__ void store(
      const W4A16Params& p, int token, float a, float b, float c, float d) const {
    store_pair(p, token, a, c);
    store_pair(p, token + 1, b, d);
  }

  /// Whether the row tile needs none of the questions that store() asks for each pair.
  __device__ __forceinline__ static bool plain(const W4A16Params& p, int row_tile) {
    return p.pairs_aligned && !p.y_is_f32 && p.residual == nullptr &&
           (row_tile + 1) * kTileRows <= p.n;
  }

  /// y of a token, from this thread's features on.
  __device__ __forceinline__ __nv_bfloat16* at(const W4A16Params& p, int token) const {
    return static_cast<__nv_bfloat16*>(p.y) + token * p.ldy + (kSwiGlu ? feature / 2 : feature);
  }
  __device__ __forceinline__ void store_at(
      const W4A16Params& p, __nv_bfloat16* to, float v0, float v1, float by) const {
    if constexpr (kSwiGlu) {
      *to = gated(p.swiglu_limit, v0, v1);
    } else {
      *reinterpret_cast<__nv_bfloat162*>(to) =
          __floats2bfloat162_rn(value(v0, 0, by), value(v1, 1, by));
    }
  }

  __device__ __forceinline__ void store_plain(const W4A16Params& p,
                                              int token,
                                              const float4& v) const {
    __nv_bfloat16* to = at(p, token);
    if (token < p.m) {
      store_at(p, to, v.x, v.z, scale(p, token));
    }
    if (token + 1 < p.m) {
      store_at(p, to + p.ldy, v.y, v.w, scale(p, token + 1));
    }
  }

  /// All chunks of a plain tile with all of its tokens.
  template <int kChunks>
  __device__ __forceinline__ void store_all(const W4A16Params& p, int token, const float* v) const {
    __nv_bfloat16* to = at(p, token);
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      const float* c = v + 4 * j;
      store_at(p, to, c[0], c[2], scale(p, token + 8 * j));
      store_at(p, to + p.ldy, c[1], c[3], scale(p, token + 8 * j + 1));
      to += 8 * p.ldy;
    }
  }
};

}  // namespace nibble::cuda
