// Codes and scales of a matrix chosen with the statistics of its input: a weighted sweep, or GPTQ
// and coordinate descent. Rows are taken kLanes at a time and spread over threads; the bits do not
// depend on how.
#pragma once

#include <cstdint>
#include <vector>

#include "quant/nvfp4.h"
#include "quantize/factor.h"
#include "quantize/panel.h"

namespace nibble::quantize {

// Rows [begin, end) of a matrix: the values are [rows][k] f32, row-major.
struct RowRange {
  const float* values = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
};

// e^T H e summed over rows, and what it is relative to. H undamped.
struct Objective {
  double before = 0;   // after GPTQ
  double after = 0;    // after coordinate descent
  double weights = 0;  // tr(W H W^T); encode_gptq() estimates it from a sample of many rows

  void add(const Objective& other);
  double relative() const { return weights > 0 ? after / weights : 0; }
};

// Codes c0 + lowest .. c0 + highest are tried for each block.
struct ScaleWindow {
  int lowest = 0;
  int highest = 0;
};
inline constexpr ScaleWindow kSweepWindow{-8, 6};
inline constexpr ScaleWindow kGptqWindow{-3, 6};
inline constexpr int kDescentRounds = 3;

// Fills the rows of `out`, whose sizes and global scale are set. weight: [k], for each column.
void encode_sweep(const RowRange& rows,
                  const std::vector<float>& weight,
                  const ScaleWindow& window,
                  const Compute& compute,
                  quant::Nvfp4Matrix& out);

struct GptqOptions {
  ScaleWindow window = kGptqWindow;
  int rounds = kDescentRounds;
  bool measure_weights = true;  // Objective::weights
};
Objective encode_gptq(const RowRange& rows,
                      const Factored& input,
                      const GptqOptions& options,
                      const Compute& compute,
                      quant::Nvfp4Matrix& out);

// e^T H e of the rows of `quantized`, e their difference from `rows`; hessian: blocks_of().
double measure(const RowRange& rows,
               const quant::Nvfp4Matrix& quantized,
               const BlockMatrix& hessian,
               const Compute& compute);

}  // namespace nibble::quantize
