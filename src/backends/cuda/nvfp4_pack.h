// NVFP4 matrices between the checkpoint's layout and the packed one (nvfp4_layout.h), on the
// device.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace nibble::cuda {

/// One part of a matrix as the checkpoint stores it, in device memory.
struct Nvfp4Source {
  const uint8_t* codes = nullptr;   // [n, k / 2], low nibble = even k
  const uint8_t* scales = nullptr;  // [n, k / 16] e4m3
  int64_t n = 0;
  int64_t k = 0;  // multiple of 16
  float global_scale = 1.0f;
};

/// Writes the rows [first_row, first_row + part.n) of a packed matrix of n rows (all parts
/// together): codes and scales into `packed`, global scale * 2^7 into row_multiplier. Padding rows
/// and columns are written (as zeros) by the call for the last part. With a row_step the part's
/// rows are first_row, first_row + row_step, ...: gate and up in turn.
void pack_nvfp4(const Nvfp4Source& part,
                int64_t first_row,
                int64_t n,
                void* packed,
                float* row_multiplier,
                CUstream_st* stream,
                int64_t row_step = 1);

/// out[n, k] bf16 (row stride k) = value * block scale, exactly; times the global scale, rounded,
/// when row_multiplier is given.
void unpack_nvfp4(const void* packed,
                  const float* row_multiplier,
                  int64_t n,
                  int64_t k,
                  void* out,
                  CUstream_st* stream);

}  // namespace nibble::cuda
