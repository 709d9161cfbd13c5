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

// A tile of c is kept in registers: 8 sums and more hide a multiply-add's latency, 12 also what a
// load from the second cache takes. AVX2 has 16 registers: 12 sums, 3 vectors of b, one of a.
constexpr int64_t kTileRows = kBytes == 64 ? 8 : (kBytes == 32 ? 4 : 2);
constexpr int64_t kTileVectors = kBytes == 64 ? 2 : (kBytes == 32 ? 3 : 4);
// Columns that a product takes from the first cache at a time: 16 of a and kLanes of b.
constexpr int64_t kChunk = 128;
constexpr int64_t kLine = 16;  // floats of a cache line

// b, c: where each vector of the tile starts.
template <int64_t kRows, int64_t kWide>
NIBBLE_INLINE void accumulate_tile(int64_t depth,
                                   const float* a,
                                   int64_t a_stride,
                                   const float* const* b,
                                   float* const* c,
                                   int64_t c_stride) {
  F sum[kRows][kWide];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kWide; ++v) {
      sum[i][v] = load(c[v] + i * c_stride);
    }
  }
  for (int64_t d = 0; d < depth; ++d) {
    F row[kWide];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kWide; ++v) {
      row[v] = load(b[v] + d * kLanes);
      __asm__("" : "+x"(row[v]));  // GCC would load it once for every row of a
    }
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) {
      const F factor = splat(a[d * a_stride + i]);
#pragma GCC unroll 4
      for (int64_t v = 0; v < kWide; ++v) {
        sum[i][v] += factor * row[v];
      }
    }
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kWide; ++v) {
      store(c[v] + i * c_stride, sum[i][v]);
    }
  }
}

// Vectors [first, first + kWide) of c, counted through the panels. next: memory that is needed
// soon, of which each tile fetches so many floats.
template <int64_t kRows, int64_t kWide>
NIBBLE_INLINE void accumulate_strip(const ProductTask& task,
                                    int64_t first,
                                    const float* next,
                                    int64_t next_floats) {
  const float* b[kWide];
  float* c[kWide];
#pragma GCC unroll 4
  for (int64_t v = 0; v < kWide; ++v) {
    const int64_t at = first + v;
    b[v] = task.b + at / kVectors * task.b_panel + at % kVectors * kWidth;
    c[v] = task.c + at / kVectors * task.c_panel + at % kVectors * kWidth;
  }
  for (int64_t i = 0; i < task.rows; i += kRows) {
    for (int64_t at = 0; at < next_floats; at += kLine) {
      __builtin_prefetch(next + i / kRows * next_floats + at);
    }
    // A tile of a large matrix takes as long to come as to compute.
    for (int64_t row = 0; row < kRows; ++row) {
      __builtin_prefetch(c[0] + (kRows + row) * task.c_stride, 1);
      __builtin_prefetch(c[kWide - 1] + (kRows + row) * task.c_stride, 1);
    }
    accumulate_tile<kRows, kWide>(task.depth, task.a + i, task.a_stride, b, c, task.c_stride);
#pragma GCC unroll 4
    for (int64_t v = 0; v < kWide; ++v) {
      c[v] += kRows * task.c_stride;
    }
  }
}

NIBBLE_INLINE void accumulate_strips(const ProductTask& task,
                                     const float* next,
                                     int64_t next_floats) {
  const int64_t vectors = task.panels * kVectors;
  int64_t v = 0;
  for (; v + kTileVectors <= vectors; v += kTileVectors) {
    accumulate_strip<kTileRows, kTileVectors>(task, v, next, next_floats);
    next += task.rows / kTileRows * next_floats;
  }
  if constexpr (kVectors % kTileVectors != 0) {
    if (v + 2 == vectors) {
      accumulate_strip<kTileRows, 2>(task, v, next, 0);
    } else if (v < vectors) {
      accumulate_strip<2 * kTileRows, 1>(task, v, next, 0);
    }
  }
}

void accumulate(const ProductTask* task) { accumulate_strips(*task, nullptr, 0); }

// c += a^T b for the columns of c: square: [k / 16][k][16], b: [panels][k][kLanes], rows [begin,
// end) of both; c: [panels][kChunk][kLanes], the columns from `column` on. A chunk of 16 columns of
// the matrix comes from memory once for all panels, a chunk of b once for all columns.
void accumulate_chunks(int64_t panels,
                       int64_t k,
                       const float* square,
                       int64_t column,
                       int64_t columns,
                       int64_t begin,
                       int64_t end,
                       const float* b,
                       float* c) {
  const int64_t tiles = panels * kVectors / kTileVectors * (kBlock / kTileRows);
  const int64_t next_floats = (kChunk * kBlock / tiles + kLine - 1) / kLine * kLine;
  for (int64_t d = begin; d < end; d += kChunk) {
    const int64_t depth = d + kChunk < end ? kChunk : end - d;
    for (int64_t at = 0; at < columns; at += kBlock) {
      const float* matrix = square + (column + at) * k + d * kBlock;
      const bool more = at + kBlock < columns;
      const float* next = more ? matrix + k * kBlock : square + column * k + (d + kChunk) * kBlock;
      const bool fetch = depth == kChunk && (more || d + 2 * kChunk <= end);
      accumulate_strips({.panels = panels,
                         .rows = kBlock,
                         .depth = depth,
                         .a = matrix,
                         .a_stride = kBlock,
                         .b = b + d * kLanes,
                         .b_panel = k * kLanes,
                         .c = c + at * kLanes,
                         .c_panel = kChunk * kLanes,
                         .c_stride = kLanes},
                        next,
                        fetch ? next_floats : 0);
    }
  }
}

// The same for one block of 16 columns and one panel; c: [16][kLanes].
void accumulate_block(int64_t begin, int64_t end, const float* a, const float* b, float* c) {
  accumulate_strips({.panels = 1,
                     .rows = kBlock,
                     .depth = end - begin,
                     .a = a + begin * kBlock,
                     .a_stride = kBlock,
                     .b = b + begin * kLanes,
                     .b_panel = 0,
                     .c = c,
                     .c_panel = 0,
                     .c_stride = kLanes},
                    nullptr,
                    0);
}

NIBBLE_INLINE int64_t chunk_columns(int64_t begin, int64_t k) {
  return begin + kChunk < k ? kChunk : k - begin;
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

// One block of one panel. now: [16][kLanes] what the columns are rounded to, before their own
// errors.
void gptq_block(const GptqTask* task, int64_t panel, int64_t begin, float* now) {
  const int64_t first = panel * task->k * kLanes;
  const float* own = task->feedback + begin * task->k + begin * kBlock;
  int32_t* codes = task->codes + (panel * task->k + begin) / kBlock * kLanes;
  for (int64_t v = 0; v < kVectors; ++v) {
    float* value = now + v * kWidth;
    const Choice choice =
        choose_scale(value, task->cost + begin, task->global, task->lowest, task->highest);
    store_int(codes + v * kWidth, choice.code);
    F energy = F{};
    for (int64_t k = 0; k < kBlock; ++k) {
      const int64_t at = first + (begin + k) * kLanes + v * kWidth;
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
    add_doubles(energy, task->energy + panel * kLanes + v * kWidth);
  }
}

void gptq(const GptqTask* task) {
  alignas(64) float now[kPanelsAtOnce * kChunk * kLanes];
  const int64_t k = task->k;
  for (int64_t i = 0; i < task->panels * kLanes; ++i) {
    task->energy[i] = 0;
  }
  for (int64_t begin = 0; begin < k; begin += kChunk) {
    const int64_t columns = chunk_columns(begin, k);
    for (int64_t panel = 0; panel < task->panels; ++panel) {
      for (int64_t i = 0; i < columns * kLanes; i += kWidth) {
        store(now + panel * kChunk * kLanes + i, load(task->w + (panel * k + begin) * kLanes + i));
      }
    }
    accumulate_chunks(task->panels, k, task->feedback, begin, columns, 0, begin, task->error, now);
    for (int64_t panel = 0; panel < task->panels; ++panel) {
      for (int64_t at = 0; at < columns; at += kBlock) {
        float* own = now + (panel * kChunk + at) * kLanes;
        accumulate_block(begin,
                         begin + at,
                         task->feedback + (begin + at) * k,
                         task->error + panel * k * kLanes,
                         own);
        gptq_block(task, panel, begin + at, own);
      }
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
  alignas(64) float sum[kPanelsAtOnce * kChunk * kLanes];
  const int64_t k = task->k;
  for (int64_t begin = 0; begin < k; begin += kChunk) {
    const int64_t columns = chunk_columns(begin, k);
    const int64_t end = begin + columns;
    for (int64_t panel = 0; panel < task->panels; ++panel) {
      const float* residual = task->residual + panel * k * kLanes;
      for (int64_t column = begin; column < end; column += kBlock) {
        const float* matrix = task->feedback + column * k;
        const float* own = matrix + column * kBlock;
        float* out = sum + (panel * kChunk + column - begin) * kLanes;
        for (int64_t v = 0; v < kVectors; ++v) {
          const float* rest = residual + column * kLanes + v * kWidth;
          for (int64_t i = 0; i < kBlock; ++i) {
            F total = load(rest + i * kLanes);
            for (int64_t j = i + 1; j < kBlock; ++j) {
              total += load(rest + j * kLanes) * own[i * kBlock + j];
            }
            store(out + i * kLanes + v * kWidth, total);
          }
        }
        accumulate_block(column + kBlock, end, matrix, residual, out);
      }
    }
    accumulate_chunks(task->panels, k, task->feedback, begin, columns, end, k, task->residual, sum);
    for (int64_t panel = 0; panel < task->panels; ++panel) {
      for (int64_t at = 0; at < columns; at += kBlock) {
        lanes_first(sum + (panel * kChunk + at) * kLanes,
                    task->gradient + (panel * k + begin + at) * kLanes);
      }
    }
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

void energy(int64_t panels, int64_t k, const float* h, const float* v, double* energy) {
  alignas(64) float own[kPanelsAtOnce * kChunk * kLanes];
  alignas(64) float right[kPanelsAtOnce * kChunk * kLanes];
  for (int64_t i = 0; i < panels * kLanes; ++i) {
    energy[i] = 0;
  }
  for (int64_t begin = 0; begin < k; begin += kChunk) {
    const int64_t columns = chunk_columns(begin, k);
    const int64_t end = begin + columns;
    for (int64_t i = 0; i < panels * kChunk * kLanes; i += kWidth) {
      store(own + i, F{});
      store(right + i, F{});
    }
    for (int64_t panel = 0; panel < panels; ++panel) {
      const float* values = v + panel * k * kLanes;
      for (int64_t column = begin; column < end; column += kBlock) {
        const int64_t at = (panel * kChunk + column - begin) * kLanes;
        accumulate_block(column, column + kBlock, h + column * k, values, own + at);
        accumulate_block(column + kBlock, end, h + column * k, values, right + at);
      }
    }
    accumulate_chunks(panels, k, h, begin, columns, end, k, v, right);
    for (int64_t panel = 0; panel < panels; ++panel) {
      const float* values = v + (panel * k + begin) * kLanes;
      const int64_t at = panel * kChunk * kLanes;
      for (int64_t i = 0; i < columns * kLanes; ++i) {
        energy[panel * kLanes + i % kLanes] +=
            static_cast<double>(values[i]) *
            (static_cast<double>(own[at + i]) + 2.0 * static_cast<double>(right[at + i]));
      }
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
