// What the CPU GEMM backends share: checks of a desc, the small per-layer slots, activation
// preparation (AWQ scale, NVFP4 quantization) and the epilogue of a scalar path.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/cpu_info.h"
#include "base/thread_pool.h"
#include "ops/gemm.h"

namespace nibble::cpu {

inline ThreadPool& pool_of(Stream stream) { return *static_cast<ThreadPool*>(stream.native); }

// Refuses with words: other devices, a CPU below `needed`, odd sizes, other dtypes.
Support check_desc(const GemmDesc& desc, CpuIsa needed);

// Rows [begin, end) of part `index` within the fused matrix.
struct PartRange {
  int64_t begin = 0;
  int64_t end = 0;
};
PartRange part_range(const GemmDesc& desc, int index);

// The multiplier of a part's accumulators: weight_scale_2, the FP8 scale or 1.
float part_alpha(const GemmDesc& desc, const LinearPart& part);
float read_scalar(const Tensor& scalar, float otherwise);
// pre_quant_scale of a part as f32 [k]; ones where the tensor is absent.
void read_pre_quant_scale(const LinearPart& part, int64_t k, float* out);

// One row of x as f32 [k]; with a pre-quant scale the product is rounded to bf16, as the reference
// implementation computes it in the model's dtype.
void load_row(const uint16_t* x, const float* pre_quant_scale, int64_t k, float* out);

// NVFP4 activations of one row: values f32 [k] become E2M1 values (codes) and f32 block scales
// [k/16] (E4M3 values). input_scale 0 means per token: row amax / (6 * 448). Returns the global
// scale used. A block whose scale rounds to zero gets zero codes.
float quantize_row(const float* x, float input_scale, int64_t k, uint8_t* codes, float* scales);

// y[row, n] = acc * alpha (+ bias) (+ residual), one rounding.
void store_output(const GemmDesc& desc, const GemmArgs& args, int64_t row, int64_t n, float value);

}  // namespace nibble::cpu

namespace nibble {

void announce_weights_cpu(const Tensor& weights, Stream stream);  // see ops/announce.h

}  // namespace nibble
