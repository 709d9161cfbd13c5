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

typedef float F __attribute__((vector_size(kBytes)));
typedef int32_t I __attribute__((vector_size(kBytes)));
typedef float Unaligned __attribute__((vector_size(kBytes), aligned(4), may_alias));
typedef int32_t UnalignedInt __attribute__((vector_size(kBytes), aligned(4), may_alias));

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

template <int64_t kRows>
NIBBLE_INLINE void accumulate_rows(int64_t depth,
                                   const float* a,
                                   int64_t a_stride,
                                   const float* b,
                                   int64_t b_stride,
                                   float* c,
                                   int64_t c_stride) {
  F sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) {
      sum[i][v] = load(c + i * c_stride + v * kWidth);
    }
  }
  for (int64_t d = 0; d < depth; ++d) {
    F row[kVectors];
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) {
      row[v] = load(b + d * b_stride + v * kWidth);
      __asm__("" : "+x"(row[v]));  // GCC would load it once for every row of a
    }
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) {
      const F factor = splat(a[d * a_stride + i]);
#pragma GCC unroll 8
      for (int64_t v = 0; v < kVectors; ++v) {
        sum[i][v] += factor * row[v];
      }
    }
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) {
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
  for (int64_t i = 0; i < rows; i += 2) {
    accumulate_rows<2>(depth, a + i, a_stride, b, b_stride, c + i * c_stride, c_stride);
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

void gptq(const GptqTask* task) {
  const int64_t stride = task->stride;
  alignas(64) float error[kBlock * kLanes];  // minus the error, for the update
  for (int64_t begin = 0; begin < task->k; begin += kBlock) {
    const float* diagonal = task->factor + begin * stride + begin;
    float weight[kBlock];
    for (int64_t k = 0; k < kBlock; ++k) {
      const float u = diagonal[k * stride + k];
      weight[k] = 1.0f / (u * u);
    }
    for (int64_t v = 0; v < kVectors; ++v) {
      float* w = task->w + begin * kLanes + v * kWidth;
      float* q = task->q + begin * kLanes + v * kWidth;
      const Choice choice = choose_scale(w, weight, task->global, task->lowest, task->highest);
      store_int(task->codes + begin / kBlock * kLanes + v * kWidth, choice.code);
      for (int64_t k = 0; k < kBlock; ++k) {
        const F value = load(w + k * kLanes);
        const F rounded = round_e2m1(value / choice.scale) * choice.scale;
        store(q + k * kLanes, rounded);
        const F e = (rounded - value) / splat(diagonal[k * stride + k]);
        store(error + k * kLanes + v * kWidth, e);
        for (int64_t j = k + 1; j < kBlock; ++j) {
          store(w + j * kLanes, load(w + j * kLanes) + e * diagonal[k * stride + j]);
        }
      }
    }
    const int64_t rest = task->k - begin - kBlock;
    accumulate(rest,
               kBlock,
               diagonal + kBlock,
               stride,
               error,
               kLanes,
               task->w + (begin + kBlock) * kLanes,
               kLanes);
  }
}

// ---- coordinate descent ----

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

// e^T gradient of every lane.
void residual_energy(const DescentTask* task, double* energy) {
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    energy[lane] = 0;
  }
  for (int64_t i = 0; i < task->k * kLanes; ++i) {
    energy[i % kLanes] +=
        static_cast<double>(task->w[i] - task->q[i]) * static_cast<double>(task->gradient[i]);
  }
}

// Block-local copies of one vector of lanes.
struct Local {
  F w[kBlock];
  F e[kBlock];
  F outside[kBlock];  // H e without this block's own part
};

// h: the block's own part of H.
NIBBLE_INLINE F block_product(const float* h, int64_t stride, const F* e, int64_t row) {
  F sum = F{};
#pragma GCC unroll 16
  for (int64_t j = 0; j < kBlock; ++j) {
    sum += e[j] * h[row * stride + j];
  }
  return sum;
}

// Tries three scales for a block; returns whether any lane changed. delta: minus the change of q.
bool descend_vector(const DescentTask* task, int64_t begin, int64_t v, float* delta) {
  const int64_t stride = task->stride;
  const float* h = task->hessian + begin * stride + begin;
  const int64_t offset = begin * kLanes + v * kWidth;
  int32_t* codes = task->codes + begin / kBlock * kLanes + v * kWidth;
  Local local;
  for (int64_t k = 0; k < kBlock; ++k) {
    local.w[k] = load(task->w + offset + k * kLanes);
    local.e[k] = local.w[k] - load(task->q + offset + k * kLanes);
  }
  F best_score = F{};
  for (int64_t k = 0; k < kBlock; ++k) {
    const F gradient = load(task->gradient + offset + k * kLanes);
    local.outside[k] = gradient - block_product(h, stride, local.e, k);
    best_score += local.e[k] * (gradient + local.outside[k]);
  }
  const I current = load_int(codes);
  I best_code = current;
  F best_q[kBlock];
  for (int64_t k = 0; k < kBlock; ++k) {
    best_q[k] = load(task->q + offset + k * kLanes);
  }
  I changed = I{};
  for (int32_t d = -1; d <= 1; ++d) {
    const I code = clamp_code(current + d);
    const F scale = decode_e4m3(code) * task->global;
    F e[kBlock];
    F q[kBlock];
    for (int64_t k = 0; k < kBlock; ++k) {
      e[k] = local.e[k];
    }
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t k = 0; k < kBlock; ++k) {
        const float own = h[k * stride + k];
        const F others = block_product(h, stride, e, k) - e[k] * own;
        const F target = local.w[k] + (local.outside[k] + others) / splat(own);
        q[k] = round_e2m1(target / scale) * scale;
        e[k] = local.w[k] - q[k];
      }
    }
    F score = F{};
    for (int64_t k = 0; k < kBlock; ++k) {
      score += e[k] * (local.outside[k] + local.outside[k] + block_product(h, stride, e, k));
    }
    const I better = score < best_score;
    best_score = better ? score : best_score;
    best_code = better ? code : best_code;
    changed |= better;
    for (int64_t k = 0; k < kBlock; ++k) {
      best_q[k] = better ? q[k] : best_q[k];
    }
  }
  int32_t any = 0;
  for (int64_t lane = 0; lane < kWidth; ++lane) {
    any |= changed[lane];
  }
  for (int64_t k = 0; k < kBlock; ++k) {
    float* q = task->q + offset + k * kLanes;
    store(delta + k * kLanes + v * kWidth, load(q) - best_q[k]);
    store(q, best_q[k]);
  }
  store_int(codes, best_code);
  return any != 0;
}

void descend(const DescentTask* task) {
  const int64_t k = task->k;
  alignas(64) float delta[kBlock * kLanes];
  for (int64_t i = 0; i < k * kLanes; i += kWidth) {
    store(task->gradient + i, F{});
  }
  for (int64_t begin = 0; begin < k; begin += kBlock) {
    for (int64_t i = 0; i < kBlock * kLanes; i += kWidth) {
      store(delta + i, load(task->w + begin * kLanes + i) - load(task->q + begin * kLanes + i));
    }
    accumulate(k,
               kBlock,
               task->hessian + begin * task->stride,
               task->stride,
               delta,
               kLanes,
               task->gradient,
               kLanes);
  }
  residual_energy(task, task->before);
  for (int32_t round = 0; round < task->rounds; ++round) {
    for (int64_t begin = 0; begin < k; begin += kBlock) {
      bool changed = false;
      for (int64_t v = 0; v < kVectors; ++v) {
        changed = descend_vector(task, begin, v, delta) || changed;
      }
      if (changed) {
        accumulate(k,
                   kBlock,
                   task->hessian + begin * task->stride,
                   task->stride,
                   delta,
                   kLanes,
                   task->gradient,
                   kLanes);
      }
    }
  }
  residual_energy(task, task->after);
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
