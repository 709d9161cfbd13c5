// Coordinate descent on panels: what panel_body.h does not have room for, included once after it by
// each file that is compiled for an instruction set. Nothing here may have linkage.
#pragma once

#include "quantize/panel_body.h"

namespace nibble::quantize {
namespace {

// A bit for each lane that is not zero.
NIBBLE_INLINE uint32_t nonzero_lanes(F value) {
#if NIBBLE_PANEL_BYTES == 32
  return static_cast<uint32_t>(__builtin_ia32_movmskps256((F)(value != F{})));
#elif NIBBLE_PANEL_BYTES == 16
  return static_cast<uint32_t>(__builtin_ia32_movmskps((F)(value != F{})));
#else
  const I set = value != F{};
  uint32_t lanes = 0;
  for (int64_t lane = 0; lane < kWidth; ++lane) {
    lanes |= (static_cast<uint32_t>(set[lane]) & 1u) << lane;
  }
  return lanes;
#endif
}

// One block of all lanes: [16][kVectors].
struct BlockState {
  F gradient[kBlock][kVectors];
  F q[kBlock][kVectors];
};

// Once through the columns with the scales fixed: each goes to the level that is best while the
// others stay. h: the block's own part of H, [16][16]. kLast: the gradients of columns that are
// done are not kept.
template <bool kLast>
NIBBLE_INLINE void descend_pass(const float* h,
                                const float* inverse,
                                const F* inverse_scale,
                                const F* scale,
                                BlockState* state,
                                F* change) {
  // Not unrolled: GCC would share error * row[k] with the update of the gradient, and then fuse it
  // with neither sum, which gives other bits.
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
      if (nonzero_lanes(error) == 0) {
        continue;
      }
      if constexpr (kLast) {
        for (int64_t j = k + 1; j < kBlock; ++j) {
          state->gradient[j][v] += error * row[j];
        }
      } else {
#pragma GCC unroll 16
        for (int64_t j = 0; j < kBlock; ++j) {
          state->gradient[j][v] += error * row[j];
        }
      }
    }
  }
}

// Twice through the columns. Returns how much that changes the energy.
NIBBLE_INLINE void descend_columns(
    const float* h, const float* inverse, const F* scale, BlockState* state, F* change) {
  F inverse_scale[kVectors];
  for (int64_t v = 0; v < kVectors; ++v) {
    inverse_scale[v] = splat(1.0f) / scale[v];
    change[v] = F{};
  }
  descend_pass<false>(h, inverse, inverse_scale, scale, state, change);
  descend_pass<true>(h, inverse, inverse_scale, scale, state, change);
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
  int32_t any = 0;
  for (int64_t lane = 0; lane < kWidth; ++lane) {
    any |= changed[lane];
  }
  return any != 0;
}

// What changed in a chunk of columns of one panel, a lane at a time.
struct Changes {
  struct Change {
    int32_t offset;  // of its row among those of the chunk, in floats
    float delta;
  };
  Change changes[kLanes][kChunk];
  int32_t count[kLanes];
  int32_t all;  // of the lanes
};

// delta: [columns][kLanes] what is added to e.
void find_changes(int64_t columns, const float* delta, Changes* found) {
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    found->count[lane] = 0;
  }
  for (int64_t i = 0; i < columns; ++i) {
    for (int64_t v = 0; v < kLanes; v += kWidth) {
      const float* values = delta + i * kLanes + v;
      for (uint32_t lanes = nonzero_lanes(load(values)); lanes != 0; lanes &= lanes - 1) {
        const int64_t lane = __builtin_ctz(lanes);
        found->changes[v + lane][found->count[v + lane]++] = {static_cast<int32_t>(i * kBlock),
                                                              values[lane]};
      }
    }
  }
  found->all = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    found->all += found->count[lane];
  }
}

// Blocks of columns that apply_changes() takes together: their sums hide a multiply-add's latency.
constexpr int64_t kWide = kBytes / 8;

// gradient += H delta for the few codes that changed: 16 values a lane of each of so many blocks of
// columns of H. rows: of the chunk, [blocks][stride], of a block [columns][16]. next: the same of
// the blocks that follow, of which each lane fetches so many floats.
template <int64_t kBlocks>
NIBBLE_INLINE void apply_changes(const float* rows,
                                 int64_t stride,
                                 const Changes& found,
                                 float* gradient,
                                 const float* next = nullptr,
                                 int64_t next_floats = 0) {
  constexpr int64_t kParts = kBlock / kWidth;
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    for (int64_t at = 0; at < next_floats; at += kLine) {
#pragma GCC unroll 8
      for (int64_t b = 0; b < kBlocks; ++b) {
        __builtin_prefetch(
            next + b * stride + lane * next_floats + at, 0, 2);  // to the second cache
      }
    }
    F sum[kBlocks][kParts];
#pragma GCC unroll 8
    for (int64_t b = 0; b < kBlocks; ++b) {
#pragma GCC unroll 4
      for (int64_t p = 0; p < kParts; ++p) {
        sum[b][p] = load(gradient + (b * kLanes + lane) * kBlock + p * kWidth);
      }
    }
    for (int32_t i = 0; i < found.count[lane]; ++i) {
      const Changes::Change& change = found.changes[lane][i];
      const F delta = splat(change.delta);
#pragma GCC unroll 8
      for (int64_t b = 0; b < kBlocks; ++b) {
#pragma GCC unroll 4
        for (int64_t p = 0; p < kParts; ++p) {
          sum[b][p] += load(rows + b * stride + change.offset + p * kWidth) * delta;
        }
      }
    }
#pragma GCC unroll 8
    for (int64_t b = 0; b < kBlocks; ++b) {
#pragma GCC unroll 4
      for (int64_t p = 0; p < kParts; ++p) {
        store(gradient + (b * kLanes + lane) * kBlock + p * kWidth, sum[b][p]);
      }
    }
  }
}

// Chunks of columns one after the other: inside a chunk a block sees what the ones before it
// changed by a dense product, all others after the chunk. One panel; false when nothing changed.
bool descend_chunk(const DescentTask* task, int64_t begin, int64_t columns, Changes* found) {
  alignas(64) float delta[kChunk * kLanes];
  alignas(64) float gradient[kBlock * kLanes];
  bool any = false;
  for (int64_t at = 0; at < columns; at += kBlock) {
    const int64_t column = begin + at;
    columns_first(task->gradient + column * kLanes, gradient);
    if (any) {
      accumulate_block(0, at, task->hessian + column * task->k + begin * kBlock, delta, gradient);
    }
    any = descend_block(task, column, gradient, delta + at * kLanes) || any;
  }
  if (any) {
    find_changes(columns, delta, found);
  }
  return any;
}

DescentTask panel_of(const DescentTask* task, int64_t panel) {
  DescentTask own = *task;
  own.panels = 1;
  own.w += panel * task->k * kLanes;
  own.q += panel * task->k * kLanes;
  own.codes += panel * task->k / kBlock * kLanes;
  own.gradient += panel * task->k * kLanes;
  own.energy += panel * kLanes;
  return own;
}

void descend_panels(const DescentTask* task, const DescentTask* own, int64_t begin) {
  const int64_t columns = chunk_columns(begin, task->k);
  Changes found[kPanelsAtOnce];
  int64_t changed[kPanelsAtOnce];
  int64_t count = 0;
  for (int64_t panel = 0; panel < task->panels; ++panel) {
    changed[count] = panel;
    count += descend_chunk(&own[panel], begin, columns, &found[count]) ? 1 : 0;
  }
  int64_t changes = 0;
  for (int64_t i = 0; i < count; ++i) {
    changes += found[i].all;
  }
  // Most rows are needed, in no order that the hardware foresees.
  const bool fetch = columns == kChunk && changes >= columns;
  const int64_t next_floats = fetch ? kChunk * kBlock / (kLanes * count) / kLine * kLine : 0;
  const int64_t stride = task->k * kBlock;
  int64_t column = 0;
  for (; column + kWide * kBlock <= task->k; column += kWide * kBlock) {
    const float* rows = task->hessian + column * task->k + begin * kBlock;
    const bool more = column + 2 * kWide * kBlock <= task->k;
    for (int64_t i = 0; i < count; ++i) {
      apply_changes<kWide>(rows,
                           stride,
                           found[i],
                           own[changed[i]].gradient + column * kLanes,
                           rows + kWide * stride + i * kLanes * next_floats,
                           more ? next_floats : 0);
    }
  }
  for (; column < task->k; column += kBlock) {
    const float* rows = task->hessian + column * task->k + begin * kBlock;
    for (int64_t i = 0; i < count; ++i) {
      apply_changes<1>(rows, stride, found[i], own[changed[i]].gradient + column * kLanes);
    }
  }
}

void final_energy(const DescentTask* task) {
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    task->energy[lane] = 0;
  }
  for (int64_t i = 0; i < task->k; ++i) {
    const float* slope = task->gradient + i / kBlock * kBlock * kLanes + i % kBlock;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float e = task->w[i * kLanes + lane] - task->q[i * kLanes + lane];
      task->energy[lane] += static_cast<double>(e) * static_cast<double>(slope[lane * kBlock]);
    }
  }
}

void descend(const DescentTask* task) {
  DescentTask own[kPanelsAtOnce];
  for (int64_t panel = 0; panel < task->panels; ++panel) {
    own[panel] = panel_of(task, panel);
  }
  for (int32_t round = 0; round < task->rounds; ++round) {
    for (int64_t begin = 0; begin < task->k; begin += kChunk) {
      descend_panels(task, own, begin);
    }
  }
  for (int64_t panel = 0; panel < task->panels; ++panel) {
    final_energy(&own[panel]);
  }
}

}  // namespace
}  // namespace nibble::quantize
