// NVFP4: 16 E2M1 values share one E4M3 scale, a tensor has one FP32 global scale.
//   value = e2m1(code) * e4m3(block_scale) * global_scale
// Stored (ModelOpt names): weight [n, k/2] u8, two codes a byte, low nibble = even k;
// weight_scale [n, k/16] e4m3; weight_scale_2 [] f32 = global_scale.
// Reference encoder, decoder and scale layouts, all on the CPU. The `compat` arithmetic follows
// ModelOpt's NVFP4QTensor (TensorRT Model Optimizer, modelopt/torch/quantization/qtensor).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"

namespace nibble::quant {

inline constexpr int64_t kBlockSize = 16;

struct Nvfp4Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<uint8_t> codes;         // [rows, cols/2]
  std::vector<uint8_t> block_scales;  // [rows, cols/16] e4m3, linear layout
  float global_scale = 1.0f;
};

// A matrix of this size to be filled.
Nvfp4Matrix empty_matrix(int64_t rows, int64_t cols, float global_scale);

// amax / (6 * 448); 1 for an all-zero tensor (the one deviation from the reference, which gives 0
// and then NaN).
float global_scale_from_amax(float amax);

// Largest magnitude; an error that says where when a value is not finite.
Result<float> finite_amax(std::span<const float> values);

// One block of 16 in the compat arithmetic: returns the scale code, writes 8 bytes of codes.
uint8_t encode_block(const float* values, float global_scale, uint8_t* codes);

// Four-over-six (Cook et al., arXiv 2512.02010): the block maximum goes to 6 or to 4, whichever
// leaves the smaller sum of squared errors; 6 when they are equal. The global scale leaves room for
// the larger block scale that 4 needs: amax / (6 * 256); 1 for an all-zero tensor.
float four_over_six_global_scale(float amax);
// One block: returns the scale code, 1 for a block of zeros, and writes 8 bytes of codes, none -0.
uint8_t encode_block_four_over_six(const float* values, float global_scale, uint8_t* codes);

// values: [rows, cols], cols a multiple of 16, all finite. global_scale > 0.
Nvfp4Matrix encode(std::span<const float> values, int64_t rows, int64_t cols, float global_scale);

Nvfp4Matrix encode_four_over_six(std::span<const float> values,
                                 int64_t rows,
                                 int64_t cols,
                                 float global_scale);

// out: [rows, cols]; exact products code * block_scale (fit bf16), times global_scale in FP32.
void decode(const uint8_t* codes,
            const uint8_t* block_scales,
            float global_scale,
            int64_t rows,
            int64_t cols,
            float* out);

// ---- scale layouts: byte offset of the scale of (row, block) ----
// Linear is on disk. 128x4 and 8x4 are the tensor-core layouts of Blackwell; sizes are padded up to
// whole tiles (rows to 128 or 8, blocks to 4).
enum class ScaleLayout : uint8_t { Linear, Tile128x4, Tile8x4 };
int64_t scale_layout_bytes(ScaleLayout layout, int64_t rows, int64_t blocks);
int64_t scale_offset(ScaleLayout layout, int64_t row, int64_t block, int64_t blocks);
// Padding is zero.
std::vector<uint8_t> to_scale_layout(ScaleLayout layout,
                                     std::span<const uint8_t> linear,
                                     int64_t rows,
                                     int64_t blocks);

}  // namespace nibble::quant
