// Activations to NVFP4 on the device, with the arithmetic of the CPU's W4A4 backends bit for bit:
// block scale = e4m3(amax / 6 / global), code = e2m1(value / (scale * global)), and zero codes
// where the scale rounds to zero. The global scale is the stored input_scale, or row amax / (6 *
// 448).
//
// Fused with what comes before (RMSNorm, SiLU times up) where that saves a pass: only a layer whose
// activations are NVFP4 may ask for it, which supports_quantize_act() says.
#pragma once

#include <cstdint>

#include "quant/quant_mode.h"

struct CUstream_st;

namespace nibble::cuda {

enum class ActInput : uint8_t {
  Plain,    // x [m, k]
  RmsNorm,  // bf16(x * rsqrt(mean(x^2) + eps) * weight), x [m, k]
  SiluMul   // bf16(silu(gate) * up), x [m, 2 k]: gate, then up
};

struct QuantizeActArgs {
  ActInput input = ActInput::Plain;
  const void* x = nullptr;            // bf16, rows of stride ldx elements, 16-byte aligned
  int64_t m = 0, k = 0, ldx = 0;      // k a multiple of 16, ldx of 8
  const void* norm_weight = nullptr;  // [k] bf16
  float eps = 0.0f;
  const float* input_scale = nullptr;  // [1] on the device; null: per token
  // What is wanted; null where not.
  void* unquantized = nullptr;   // [m, k] bf16: the input of the quantizer
  void* values = nullptr;        // [m, k] bf16: code * block scale, exactly
  uint8_t* codes = nullptr;      // [m, k / 2], low nibble = even k
  uint8_t* scales = nullptr;     // e4m3 [m, k / 16], or 128x4 tiles (quant/nvfp4.h), padding zeroed
  float* token_scale = nullptr;  // [m]: the global scale of each row
  bool tiled_scales = false;
};

/// Whether a layer of this mode may have its activations quantized: w4a4 only.
constexpr bool supports_quantize_act(QuantMode mode) { return mode == kW4A4; }

/// Asynchronous, no allocation. What is written must not overlap x.
void quantize_act(const QuantizeActArgs& args, CUstream_st* stream);

}  // namespace nibble::cuda
