// AWQ's pre_quant_scale on the device: activations times a vector over their channels, in front of
// a product.
#pragma once

#include <cstdint>

#include "ops/gemm.h"

struct CUstream_st;

namespace nibble::cuda {

// out[t, i] = bf16(x[t, i] * scale[i]); x bf16 [m, k] of stride ldx, scale f32 [k], out bf16 [m, k]
// contiguous.
void scale_columns(const void* x,
                   const float* scale,
                   int64_t m,
                   int64_t k,
                   int64_t ldx,
                   void* out,
                   CUstream_st* stream);

// A slot that holds the scale of a desc with pre_quant_scale (one element otherwise), and what
// fills it; the parts of a fused matrix share one.
Tensor pre_quant_slot(const GemmDesc& desc);
void pack_pre_quant(const GemmDesc& desc,
                    const LinearPart& part,
                    const Tensor& slot,
                    CUstream_st* stream);

// Bytes in front of the workspace for the scaled activations; 0 without pre_quant_scale.
int64_t pre_quant_bytes(const GemmDesc& desc, int64_t rows);
// The same arguments with x scaled and the workspace cut; unchanged without pre_quant_scale.
GemmArgs apply_pre_quant(const GemmDesc& desc,
                         const GemmArgs& args,
                         const Tensor& slot,
                         CUstream_st* stream);

}  // namespace nibble::cuda
