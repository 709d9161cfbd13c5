// The packed form of an NVFP4 weight matrix on CUDA devices, shared by packing, decoding and the
// plans.
//
// Records of 64 rows by 64 columns of K, 2304 contiguous bytes: codes (2048), then scales (256).
// Record order is [tile of 128 rows][K block][row block of the tile], so a run of K of a tile is
// one contiguous copy. Rows are padded to 128, K to 64, with zero codes.
//
// Inside a record warp w (0..3) owns rows 16w..16w+15. Its lane l = 4r + t holds one 16-byte
// vector: a 32-bit word for each of the four K16 steps. A word has the eight codes of rows 16w + 2r
// and 16w + 2r + 1 (registers of instruction rows r and r + 8), columns 2t, 2t + 1, 2t + 8, 2t + 9:
// the A fragment of mma.m16n8k16 and of wgmma.m64k16. Neighbouring features sit in one lane, so the
// epilogue stores whole 32-byte sectors without a transposition.
//
// Codes are scattered over a word so that four AND masks with T = sign at bit 15, magnitude at bits
// 8..6 of each half give four bf16x2 (value * 2^-126) after the shifts below; scales are stored as
// 5-bit exponent, 3-bit mantissa (E4M3 subnormals normalised) and expand to scale * 2^119. The
// product is value * scale * 2^-7 exactly; 2^7 is part of the row multiplier. Zero scales become
// zero codes and negative scales flip the signs when packing, so decoding has no special cases.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define NIBBLE_HOST_DEVICE __host__ __device__
#else
#define NIBBLE_HOST_DEVICE
#endif

namespace nibble::cuda {

inline constexpr int kRecordRows = 64;
inline constexpr int kRecordColumns = 64;
inline constexpr int kRecordCodeBytes = 2048;
inline constexpr int kRecordScaleBytes = 256;
inline constexpr int kRecordBytes = kRecordCodeBytes + kRecordScaleBytes;
inline constexpr int kTileRows = 128;  // rows of one thread block's tile; N is padded to it
inline constexpr int kTileRecordBytes = 2 * kRecordBytes;  // a tile's 64 columns of K
inline constexpr float kRowMultiplier = 128.0f;            // 2^7, see above

NIBBLE_HOST_DEVICE constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// K blocks of a row: ceil(k / 64).
NIBBLE_HOST_DEVICE constexpr int64_t k_blocks_of(int64_t k) { return ceil_div(k, kRecordColumns); }
/// Tiles of 128 rows: ceil(n / 128).
NIBBLE_HOST_DEVICE constexpr int64_t row_tiles_of(int64_t n) { return ceil_div(n, kTileRows); }

/// Byte offset of the record of rows [64 row_block, + 64) and columns [64 k_block, + 64).
NIBBLE_HOST_DEVICE constexpr int64_t record_offset(int64_t row_block,
                                                   int64_t k_block,
                                                   int64_t k_blocks) {
  return ((row_block / 2 * k_blocks + k_block) * 2 + row_block % 2) * kRecordBytes;
}

constexpr int64_t packed_bytes(int64_t n, int64_t k) {
  return row_tiles_of(n) * 2 * k_blocks_of(k) * kRecordBytes;
}
constexpr int64_t padded_rows(int64_t n) { return row_tiles_of(n) * kTileRows; }

/// Bit positions of register `reg` (0..3) in each half word: sign, then magnitude bits high to low.
/// 0: as is; 1: shifted left by 3; 2: by 6; 3: ((q >> 8) & 0x6C) * 0x1042.
NIBBLE_HOST_DEVICE constexpr uint32_t place_code(uint32_t code, int reg) {
  const uint32_t sign = (code >> 3) & 1;
  const uint32_t high = (code >> 2) & 1;
  const uint32_t middle = (code >> 1) & 1;
  const uint32_t low = code & 1;
  switch (reg) {
    case 0:
      return sign << 15 | high << 8 | middle << 7 | low << 6;
    case 1:
      return sign << 12 | high << 5 | middle << 4 | low << 3;
    case 2:
      return sign << 9 | high << 2 | middle << 1 | low;
    default:
      return sign << 11 | high << 10 | middle << 14 | low << 13;
  }
}

/// E4M3 magnitude (0..127) to 5-bit exponent and 3-bit mantissa. 0 gives 0 (its codes are zeroed),
/// NaN (127) gives 255, which expands to a bf16 NaN.
NIBBLE_HOST_DEVICE constexpr uint32_t encode_scale(uint32_t magnitude) {
  if (magnitude == 127) {
    return 255;
  }
  const uint32_t exponent = magnitude >> 3;
  uint32_t mantissa = magnitude & 7;
  if (exponent != 0) {
    return (exponent - 7 + 22) << 3 | mantissa;
  }
  if (mantissa == 0) {
    return 0;
  }
  uint32_t shift = 0;  // mantissa / 8 * 2^-6, normalised to 1.x
  while ((mantissa & 8) == 0) {
    mantissa <<= 1;
    ++shift;
  }
  return (22 - 6 - shift) << 3 | (mantissa & 7);
}

/// The scales (encode_scale) of two K16 steps of a row, as 16 bits: the even step's where it is
/// decoded, bits 11..4; the odd one's where it is once the bytes are swapped.
NIBBLE_HOST_DEVICE constexpr uint32_t place_scales(uint32_t even, uint32_t odd) {
  return even << 4 | (odd & 15) << 12 | odd >> 4;
}

}  // namespace nibble::cuda
