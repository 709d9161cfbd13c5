// The kernels of panel_abi.h in GCC/Clang vector extensions, included once by each file that is
// compiled for an instruction set; NIBBLE_PANEL_BYTES is the width of a vector there. Nothing here
// may have linkage.
#pragma once

#include "quantize/panel_abi.h"

namespace nibble::quantize {
namespace {

constexpr int kBytes = NIBBLE_PANEL_BYTES;
constexpr int64_t kWidth = kBytes / 4;         // lanes of a vector
constexpr int64_t kVectors = kLanes / kWidth;  // of a panel row
constexpr int64_t kBlock = kPanelBlock;

using F = float __attribute__((vector_size(kBytes)));
using I = int32_t __attribute__((vector_size(kBytes)));
using Unaligned = float __attribute__((vector_size(kBytes), aligned(4), may_alias));
using UnalignedInt = int32_t __attribute__((vector_size(kBytes), aligned(4), may_alias));

#define NIBBLE_INLINE inline __attribute__((always_inline))

NIBBLE_INLINE F load(const float* at) { return *reinterpret_cast<const Unaligned*>(at); }
NIBBLE_INLINE void store(float* at, F value) { *reinterpret_cast<Unaligned*>(at) = value; }
NIBBLE_INLINE I load_int(const int32_t* at) { return *reinterpret_cast<const UnalignedInt*>(at); }
NIBBLE_INLINE void store_int(int32_t* at, I value) { *reinterpret_cast<UnalignedInt*>(at) = value; }
NIBBLE_INLINE F splat(float value) { return value - F{}; }  // no operation: x - 0 is x
NIBBLE_INLINE I splat_int(int32_t value) { return I{} + value; }
NIBBLE_INLINE F smaller(F a, F b) { return a < b ? a : b; }
NIBBLE_INLINE F larger(F a, F b) { return a > b ? a : b; }
NIBBLE_INLINE F magnitude(F a) { return (F)((I)a & splat_int(0x7FFFFFFF)); }

// Nearest E2M1 value, ties to even, 6 at most; keeps the sign. Adding and subtracting 1.5 * 2^23
// steps rounds to whole steps.
NIBBLE_INLINE F round_e2m1(F x) {
  const I sign = (I)x & splat_int(static_cast<int32_t>(0x80000000u));
  const F a = smaller(magnitude(x), splat(6.0f));
  const F half = splat(6291456.0f);
  const F one = splat(12582912.0f);
  const F two = splat(25165824.0f);
  const F magic = a < splat(2.0f) ? half : (a < splat(4.0f) ? one : two);
  return (F)((I)((a + magic) - magic) | sign);
}

// x >= 0: the nearest E4M3 code, ties to even, 0x7E at most.
NIBBLE_INLINE I encode_e4m3(F x) {
  const F a = smaller(x, splat(448.0f));
  const I bits = (I)a;
  const I odd = (bits >> 20) & 1;
  const I normal = (bits + 0x7FFFF + odd - 0x3C000000) >> 20;
  const F steps = a * 512.0f;
  const F magic = splat(12582912.0f);
  const I subnormal = (I)(steps + magic) - (I)magic;
  return a < splat(0.015625f) ? subnormal : normal;
}

// Codes 0..126.
NIBBLE_INLINE F decode_e4m3(I code) {
  const F normal = (F)((code << 20) + (120 << 23));
  const F subnormal = __builtin_convertvector(code, F) * 0.001953125f;
  return code < 8 ? subnormal : normal;
}

NIBBLE_INLINE I clamp_code(I code) {
  const I low = code < 1 ? splat_int(1) : code;
  return low > 126 ? splat_int(126) : low;
}

// ---- products ----

// A tile of c is kept in registers: 8 sums and more hide a multiply-add's latency.
// Two rows by four vectors beat four by two on AVX2 (88 against 63 GFLOP/s from the second cache).
constexpr int64_t kTileRows = kBytes == 64 ? 8 : 2;
constexpr int64_t kTileVectors = kBytes == 64 ? 2 : 4;
// Columns that a product takes from the first cache at a time: 16 of a and kLanes of b.
constexpr int64_t kChunk = 128;

NIBBLE_INLINE void accumulate_tile(int64_t depth,
                                   const float* a,
                                   int64_t a_stride,
                                   const float* b,
                                   int64_t b_stride,
                                   float* c,
                                   int64_t c_stride) {
  F sum[kTileRows][kTileVectors];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kTileVectors; ++v) {
      sum[i][v] = load(c + i * c_stride + v * kWidth);
    }
  }
  for (int64_t d = 0; d < depth; ++d) {
    F row[kTileVectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kTileVectors; ++v) {
      row[v] = load(b + d * b_stride + v * kWidth);
      __asm__("" : "+x"(row[v]));  // GCC would load it once for every row of a
    }
#pragma GCC unroll 8
    for (int64_t i = 0; i < kTileRows; ++i) {
      const F factor = splat(a[d * a_stride + i]);
#pragma GCC unroll 4
      for (int64_t v = 0; v < kTileVectors; ++v) {
        sum[i][v] += factor * row[v];
      }
    }
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kTileVectors; ++v) {
      store(c + i * c_stride + v * kWidth, sum[i][v]);
    }
  }
}

void accumulate(int64_t rows,
                int64_t depth,
                const float* a,
                int64_t a_stride,
                const float* b,
                int64_t b_stride,
                float* c,
                int64_t c_stride) {
  for (int64_t i = 0; i < rows; i += kTileRows) {
    for (int64_t v = 0; v < kVectors; v += kTileVectors) {
      accumulate_tile(depth,
                      a + i,
                      a_stride,
                      b + v * kWidth,
                      b_stride,
                      c + i * c_stride + v * kWidth,
                      c_stride);
    }
  }
}

// c += a^T b for 16 columns of a: [end][16], b: [end][kLanes], c: [16][kLanes], from row `begin`.
void accumulate_block(int64_t begin, int64_t end, const float* a, const float* b, float* c) {
  for (int64_t d = begin; d < end; d += kChunk) {
    accumulate(kBlock,
               d + kChunk < end ? kChunk : end - d,
               a + d * kBlock,
               kBlock,
               b + d * kLanes,
               kLanes,
               c,
               kLanes);
  }
}

// ---- scales ----

struct Choice {
  I code;
  F scale;
};

// Of one vector of lanes: w + k * kLanes is column k.
NIBBLE_INLINE Choice
choose_scale(const float* w, const float* weight, float global, int32_t lowest, int32_t highest) {
  F largest = F{};
  for (int64_t k = 0; k < kBlock; ++k) {
    largest = larger(largest, magnitude(load(w + k * kLanes)));
  }
  const I nearest = encode_e4m3(largest / splat(6.0f) / splat(global));
  I best = clamp_code(nearest);
  F best_error = splat(__builtin_inff());
  for (int32_t d = lowest; d <= highest; ++d) {
    const I code = clamp_code(nearest + d);
    const F scale = decode_e4m3(code) * global;
    F error = F{};
    for (int64_t k = 0; k < kBlock; ++k) {
      const F value = load(w + k * kLanes);
      const F rest = value - round_e2m1(value / scale) * scale;
      error += rest * rest * weight[k];
    }
    const I better = error < best_error;
    best = better ? code : best;
    best_error = better ? error : best_error;
  }
  return {best, decode_e4m3(best) * global};
}

void sweep(const SweepTask* task) {
  for (int64_t v = 0; v < kVectors; ++v) {
    const float* w = task->w + v * kWidth;
    const Choice choice = choose_scale(w, task->weight, task->global, task->lowest, task->highest);
    store_int(task->codes + v * kWidth, choice.code);
    for (int64_t k = 0; k < kBlock; ++k) {
      store(task->q + k * kLanes + v * kWidth,
            round_e2m1(load(w + k * kLanes) / choice.scale) * choice.scale);
    }
  }
}

// ---- GPTQ ----

NIBBLE_INLINE void add_doubles(F value, double* sum) {
  for (int64_t lane = 0; lane < kWidth; ++lane) {
    sum[lane] += static_cast<double>(value[lane]);
  }
}

void gptq(const GptqTask* task) {
  alignas(64) float now[kBlock * kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    task->energy[lane] = 0;
  }
  for (int64_t begin = 0; begin < task->k; begin += kBlock) {
    const float* columns = task->feedback + begin * task->k;
    for (int64_t i = 0; i < kBlock * kLanes; i += kWidth) {
      store(now + i, load(task->w + begin * kLanes + i));
    }
    accumulate_block(0, begin, columns, task->error, now);
    const float* own = columns + begin * kBlock;
    for (int64_t v = 0; v < kVectors; ++v) {
      float* value = now + v * kWidth;
      const Choice choice =
          choose_scale(value, task->cost + begin, task->global, task->lowest, task->highest);
      store_int(task->codes + begin / kBlock * kLanes + v * kWidth, choice.code);
      F energy = F{};
      for (int64_t k = 0; k < kBlock; ++k) {
        const int64_t at = (begin + k) * kLanes + v * kWidth;
        const F wanted = load(value + k * kLanes);
        const F rounded = round_e2m1(wanted / choice.scale) * choice.scale;
        const F rest = wanted - rounded;
        const F error = load(task->w + at) - rounded;
        const F residual = rest * task->cost[begin + k];
        store(task->q + at, rounded);
        store(task->error + at, error);
        store(task->residual + at, residual);
        energy += residual * rest;
        for (int64_t j = k + 1; j < kBlock; ++j) {
          store(value + j * kLanes, load(value + j * kLanes) + error * own[k * kBlock + j]);
        }
      }
      add_doubles(energy, task->energy + v * kWidth);
    }
  }
}

// [16][kLanes] to [kLanes][16].
NIBBLE_INLINE void lanes_first(const float* from, float* to) {
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    for (int64_t k = 0; k < kBlock; ++k) {
      to[lane * kBlock + k] = from[k * kLanes + lane];
    }
  }
}

NIBBLE_INLINE void columns_first(const float* from, float* to) {
  for (int64_t k = 0; k < kBlock; ++k) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      to[k * kLanes + lane] = from[lane * kBlock + k];
    }
  }
}

void gradient(const GradientTask* task) {
  alignas(64) float sum[kBlock * kLanes];
  for (int64_t begin = 0; begin < task->k; begin += kBlock) {
    const float* columns = task->feedback + begin * task->k;
    const float* own = columns + begin * kBlock;
    for (int64_t v = 0; v < kVectors; ++v) {
      const float* residual = task->residual + begin * kLanes + v * kWidth;
      for (int64_t i = 0; i < kBlock; ++i) {
        F total = load(residual + i * kLanes);
        for (int64_t k = i + 1; k < kBlock; ++k) {
          total += load(residual + k * kLanes) * own[i * kBlock + k];
        }
        store(sum + i * kLanes + v * kWidth, total);
      }
    }
    accumulate_block(begin + kBlock, task->k, columns, task->residual, sum);
    lanes_first(sum, task->gradient + begin * kLanes);
  }
}

// ---- energies ----

void dot(int64_t k, const float* a, const float* b, double* energy) {
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    energy[lane] = 0;
  }
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      energy[lane] +=
          static_cast<double>(a[i * kLanes + lane]) * static_cast<double>(b[i * kLanes + lane]);
    }
  }
}

void energy(int64_t k, const float* h, const float* v, double* energy) {
  alignas(64) float own[kBlock * kLanes];
  alignas(64) float right[kBlock * kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    energy[lane] = 0;
  }
  for (int64_t begin = 0; begin < k; begin += kBlock) {
    for (int64_t i = 0; i < kBlock * kLanes; i += kWidth) {
      store(own + i, F{});
      store(right + i, F{});
    }
    accumulate_block(begin, begin + kBlock, h + begin * k, v, own);
    accumulate_block(begin + kBlock, k, h + begin * k, v, right);
    for (int64_t i = 0; i < kBlock * kLanes; ++i) {
      energy[i % kLanes] += static_cast<double>(v[begin * kLanes + i]) *
                            (static_cast<double>(own[i]) + 2.0 * static_cast<double>(right[i]));
    }
  }
}

// ---- coordinate descent ----

NIBBLE_INLINE bool any_nonzero(F value) {
#if NIBBLE_PANEL_BYTES == 32
  return __builtin_ia32_movmskps256((F)(value != F{})) != 0;
#elif NIBBLE_PANEL_BYTES == 16
  return __builtin_ia32_movmskps((F)(value != F{})) != 0;
#else
  const I set = value != F{};
  int32_t any = 0;
  for (int64_t lane = 0; lane < kWidth; ++lane) {
    any |= set[lane];
  }
  return any != 0;
#endif
}

// One block of all lanes: [16][kVectors].
struct BlockState {
  F gradient[kBlock][kVectors];
  F q[kBlock][kVectors];
};

// Twice through the columns with the scales fixed: each goes to the level that is best while the
// others stay. Returns how much that changes the energy. h: the block's own part of H, [16][16].
NIBBLE_INLINE void descend_columns(
    const float* h, const float* inverse, const F* scale, BlockState* state, F* change) {
  F inverse_scale[kVectors];
  for (int64_t v = 0; v < kVectors; ++v) {
    inverse_scale[v] = splat(1.0f) / scale[v];
    change[v] = F{};
  }
  for (int pass = 0; pass < 2; ++pass) {
    for (int64_t k = 0; k < kBlock; ++k) {
      const float* row = h + k * kBlock;
      for (int64_t v = 0; v < kVectors; ++v) {
        const F slope = state->gradient[k][v];
        const F before = state->q[k][v];
        const F target = before + slope * inverse[k];
        const F after = round_e2m1(target * inverse_scale[v]) * scale[v];
        const F error = before - after;  // what is added to e
        state->q[k][v] = after;
        change[v] += error * (slope + slope + error * row[k]);
        if (any_nonzero(error)) {
#pragma GCC unroll 16
          for (int64_t j = 0; j < kBlock; ++j) {
            state->gradient[j][v] += error * row[j];
          }
        }
      }
    }
  }
}

// Tries three scales for a block of every lane; returns whether any lane changed. gradient:
// [16][kLanes]; delta: [16][kLanes] what is added to e.
bool descend_block(const DescentTask* task, int64_t begin, const float* gradient, float* delta) {
  const float* h = task->hessian + begin * task->k + begin * kBlock;
  int32_t* codes = task->codes + begin / kBlock * kLanes;
  float* q = task->q + begin * kLanes;
  float inverse[kBlock];
  for (int64_t k = 0; k < kBlock; ++k) {
    inverse[k] = 1.0f / h[k * kBlock + k];
  }
  I best_code[kVectors];
  F best_change[kVectors];
  F best_q[kBlock][kVectors];
  I changed = I{};
  for (int64_t v = 0; v < kVectors; ++v) {
    best_code[v] = load_int(codes + v * kWidth);
    best_change[v] = F{};
    for (int64_t k = 0; k < kBlock; ++k) {
      best_q[k][v] = load(q + k * kLanes + v * kWidth);
    }
  }
  for (int32_t d = -1; d <= 1; ++d) {
    I code[kVectors];
    F scale[kVectors];
    F change[kVectors];
    BlockState state;
    for (int64_t v = 0; v < kVectors; ++v) {
      code[v] = clamp_code(load_int(codes + v * kWidth) + d);
      scale[v] = decode_e4m3(code[v]) * task->global;
      for (int64_t k = 0; k < kBlock; ++k) {
        state.gradient[k][v] = load(gradient + k * kLanes + v * kWidth);
        state.q[k][v] = load(q + k * kLanes + v * kWidth);
      }
    }
    descend_columns(h, inverse, scale, &state, change);
    for (int64_t v = 0; v < kVectors; ++v) {
      const I better = change[v] < best_change[v];
      best_change[v] = better ? change[v] : best_change[v];
      best_code[v] = better ? code[v] : best_code[v];
      changed |= better;
      for (int64_t k = 0; k < kBlock; ++k) {
        best_q[k][v] = better ? state.q[k][v] : best_q[k][v];
      }
    }
  }
  for (int64_t v = 0; v < kVectors; ++v) {
    store_int(codes + v * kWidth, best_code[v]);
    for (int64_t k = 0; k < kBlock; ++k) {
      const int64_t at = k * kLanes + v * kWidth;
      store(delta + at, load(q + at) - best_q[k][v]);
      store(q + at, best_q[k][v]);
    }
  }
  return any_nonzero((F)(changed & splat_int(0x3F800000)));
}

// gradient += H delta for the few codes that changed, a lane at a time. delta: [columns][kLanes]
// of the columns from `begin` on.
void apply_changes(const DescentTask* task, int64_t begin, int64_t columns, const float* delta) {
  struct Change {
    int32_t offset;  // of its row among those of `columns`, in floats
    float delta;
  };
  Change changes[kLanes][kChunk];
  int32_t count[kLanes] = {};
  for (int64_t i = 0; i < columns; ++i) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = delta[i * kLanes + lane];
      changes[lane][count[lane]] = {static_cast<int32_t>(i * kBlock), value};
      count[lane] += value != 0.0f ? 1 : 0;
    }
  }
  for (int64_t block = 0; block < task->k; block += kBlock) {
    const float* rows = task->hessian + block * task->k + begin * kBlock;
    float* gradient = task->gradient + block * kLanes;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      constexpr int64_t kParts = kBlock / kWidth;
      F sum[kParts];
#pragma GCC unroll 4
      for (int64_t p = 0; p < kParts; ++p) {
        sum[p] = load(gradient + lane * kBlock + p * kWidth);
      }
      for (int32_t i = 0; i < count[lane]; ++i) {
        const Change& change = changes[lane][i];
#pragma GCC unroll 4
        for (int64_t p = 0; p < kParts; ++p) {
          sum[p] += load(rows + change.offset + p * kWidth) * change.delta;
        }
      }
#pragma GCC unroll 4
      for (int64_t p = 0; p < kParts; ++p) {
        store(gradient + lane * kBlock + p * kWidth, sum[p]);
      }
    }
  }
}

// Chunks of columns one after the other: inside a chunk a block sees what the ones before it
// changed by a dense product, all others after the chunk.
void descend_chunk(const DescentTask* task, int64_t begin, int64_t columns) {
  alignas(64) float delta[kChunk * kLanes];
  alignas(64) float gradient[kBlock * kLanes];
  bool any = false;
  for (int64_t at = 0; at < columns; at += kBlock) {
    const int64_t column = begin + at;
    columns_first(task->gradient + column * kLanes, gradient);
    if (any) {
      accumulate(kBlock,
                 at,
                 task->hessian + column * task->k + begin * kBlock,
                 kBlock,
                 delta,
                 kLanes,
                 gradient,
                 kLanes);
    }
    any = descend_block(task, column, gradient, delta + at * kLanes) || any;
  }
  if (any) {
    apply_changes(task, begin, columns, delta);
  }
}

void descend(const DescentTask* task) {
  const int64_t k = task->k;
  for (int32_t round = 0; round < task->rounds; ++round) {
    for (int64_t begin = 0; begin < k; begin += kChunk) {
      descend_chunk(task, begin, begin + kChunk < k ? kChunk : k - begin);
    }
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    task->energy[lane] = 0;
  }
  for (int64_t i = 0; i < k; ++i) {
    const float* slope = task->gradient + i / kBlock * kBlock * kLanes + i % kBlock;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float e = task->w[i * kLanes + lane] - task->q[i * kLanes + lane];
      task->energy[lane] += static_cast<double>(e) * static_cast<double>(slope[lane * kBlock]);
    }
  }
}

// ---- the rest ----

// exp of values <= 0: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2], relative error below 1e-6.
NIBBLE_INLINE F exponential(F x) {
  const F clamped = larger(x, splat(-87.0f));
  const F magic = splat(12582912.0f);
  const F n = (clamped * 1.44269504f + magic) - magic;
  const F r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
  F p = splat(1.0f / 720.0f);
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const I power = (__builtin_convertvector(n, I) + 127) << 23;
  return p * (F)power;
}

void softmax(int64_t rows, int64_t t0, float scale, float* x, int64_t stride) {
  for (int64_t v = 0; v < kVectors; ++v) {
    float* column = x + v * kWidth;
    I position;
    for (int64_t lane = 0; lane < kWidth; ++lane) {
      position[lane] = static_cast<int32_t>(t0 + v * kWidth + lane);
    }
    F largest = splat(-__builtin_inff());
    for (int64_t s = 0; s < rows; ++s) {
      const F score = load(column + s * stride) * scale;
      const I seen = position >= static_cast<int32_t>(s);
      largest = seen ? larger(largest, score) : largest;
    }
    F sum = F{};
    for (int64_t s = 0; s < rows; ++s) {
      const I seen = position >= static_cast<int32_t>(s);
      const F value = exponential(load(column + s * stride) * scale - largest);
      const F kept = seen ? value : F{};
      store(column + s * stride, kept);
      sum += kept;
    }
    for (int64_t s = 0; s < rows; ++s) {
      store(column + s * stride, load(column + s * stride) / sum);
    }
  }
}

}  // namespace
}  // namespace nibble::quantize
