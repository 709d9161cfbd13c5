// What crosses the border between generic code and the files compiled for one instruction set. A
// panel is [columns][kLanes] f32: kLanes rows of a matrix side by side, so that every step of an
// algorithm along the columns is one vector operation over rows. A lane's bits depend on its own
// row only, never on the other lanes, the panel or the thread count; they may differ between
// instruction sets (fused multiply-add).
#pragma once

#include <cstdint>

namespace nibble::quantize {

inline constexpr int64_t kLanes = 32;
inline constexpr int64_t kPanelBlock = 16;  // columns that share a scale
// A task takes up to so many panels, and each piece of a square matrix from memory once for all of
// them. The bits do not depend on which panels go together.
inline constexpr int64_t kPanelsAtOnce = 6;

// c[p][i][lane] += sum over d < depth of a[d * a_stride + i] * b[p][d][lane] for i < rows, p <
// panels, in the order of d.
struct ProductTask {
  int64_t panels;
  int64_t rows;  // a multiple of 8
  int64_t depth;
  const float* a;
  int64_t a_stride;
  const float* b;   // [depth][kLanes] from panel to panel
  int64_t b_panel;  // floats
  float* c;
  int64_t c_panel;  // floats from panel to panel
  int64_t c_stride;
};

// Scale choice of one block: codes c0 + lowest .. c0 + highest, clamped to 1..126, where c0 is the
// code nearest to amax / 6 / global. Minimises sum weight[k] (w - q)^2; the lower code of equals.
struct SweepTask {
  const float* w;       // [16][kLanes]
  const float* weight;  // [16]
  float global;
  int32_t lowest;
  int32_t highest;
  float* q;        // [16][kLanes] dequantized
  int32_t* codes;  // [kLanes] E4M3
};

// Square matrices of the tasks below are [k / 16][k][16] f32: 16 columns side by side. Columns of
// everything are in processing order.

// Panels through GPTQ, by the triangular T of H = T T^T: the weight that column k is rounded to
// is w_k + sum over j < k of e_j V_jk, with V = T / diag(T) and e = w - q.
struct GptqTask {
  int64_t panels;
  const float* w;         // [panels][k][kLanes]
  const float* feedback;  // V + V^T - 1
  const float* cost;      // [k] T_kk^2: of a squared error that later columns make up for
  int64_t k;
  float global;
  int32_t lowest;
  int32_t highest;
  float* q;         // [panels][k][kLanes]
  int32_t* codes;   // [panels][k / 16][kLanes]
  float* error;     // [panels][k][kLanes] w - q
  float* residual;  // [panels][k][kLanes] cost times what was rounded away
  double* energy;   // [panels][kLanes] e^T H e
};

// H e of GPTQ's error as V residual.
struct GradientTask {
  int64_t panels;
  const float* feedback;
  const float* residual;
  int64_t k;
  float* gradient;  // [panels][k / 16][kLanes][16]
};

// Coordinate descent on sum over lanes of e^T H e with e = w - q.
struct DescentTask {
  int64_t panels;
  const float* w;        // [panels][k][kLanes]
  const float* hessian;  // damped
  int64_t k;
  float global;
  int32_t rounds;
  float* q;         // [panels][k][kLanes]: improved in place
  int32_t* codes;   // [panels][k / 16][kLanes]: improved in place
  float* gradient;  // [panels][k / 16][kLanes][16]: H e, kept so
  double* energy;   // [panels][kLanes]: e^T H e at the end
};

struct PanelKernels {
  void (*accumulate)(const ProductTask* task);
  void (*sweep)(const SweepTask* task);
  void (*gptq)(const GptqTask* task);
  void (*gradient)(const GradientTask* task);
  void (*descend)(const DescentTask* task);
  // energy[panel][lane] = v^T H v; h: [k / 16][k][16], symmetric, of each 16 columns only the rows
  // from their own on are read; v: [panels][k][kLanes].
  void (*energy)(int64_t panels, int64_t k, const float* h, const float* v, double* energy);
  // energy[lane] = sum over k of a[k][lane] * b[k][lane], in double.
  void (*dot)(int64_t k, const float* a, const float* b, double* energy);
  // Causal softmax of scaled scores, in place: x[s][t], column t sees rows s <= t0 + t only, the
  // rest of it becomes 0. x: [rows][stride], kLanes columns from x on.
  void (*softmax)(int64_t rows, int64_t t0, float scale, float* x, int64_t stride);
};

// One object per instruction set.
extern const PanelKernels kPanelScalar;
extern const PanelKernels kPanelAvx2;
extern const PanelKernels kPanelAvx512;

}  // namespace nibble::quantize
