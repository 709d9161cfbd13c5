#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/device/nvfp4_decode.cuh"
#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_pack.h"
#include "base/check.h"

namespace nibble::cuda {
namespace {

struct PackParams {
  const uint8_t* codes;
  const uint8_t* scales;
  uint8_t* packed;
  float* row_multiplier;
  int64_t first_row;  // of the part
  int64_t end_row;    // first row that this call does not write
  int64_t part_rows;
  int64_t row_step;
  int64_t k;
  int64_t k_blocks;
  float multiplier;
};

/// Row of the record that lane l of warp w holds in instruction rows l / 4 (half 0) and l / 4 + 8
/// (half 1).
__device__ __forceinline__ int record_row(int warp, int lane, int half) {
  return warp * 16 + (lane / 4) * 2 + half;
}

/// One block a record of 64 rows by 64 columns; 128 threads, thread = warp and lane of the
/// consumer. Rows of a record may belong to two parts, two rows share a word: a call replaces the
/// bits of its own rows.
__global__ void pack_kernel(const PackParams p) {
  const int64_t k_block = blockIdx.x % p.k_blocks;
  const int64_t row_block = p.first_row / kRecordRows + blockIdx.x / p.k_blocks;
  uint8_t* record = p.packed + record_offset(row_block, k_block, p.k_blocks);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int t = lane % 4;

  for (int half = 0; half < 2; ++half) {
    const int64_t row = row_block * kRecordRows + record_row(warp, lane, half);
    if (row < p.first_row || row >= p.end_row) {
      continue;
    }
    const int64_t source = (row - p.first_row) / p.row_step;
    const bool real = source < p.part_rows;
    if (real && (row - p.first_row) % p.row_step != 0) {
      continue;  // another part's
    }
    uint32_t even_scale = 0;
    for (int step = 0; step < 4; ++step) {
      const int64_t column = k_block * kRecordColumns + step * 16;
      uint32_t word = 0;
      uint32_t scale_code = 0;
      if (real && column < p.k) {
        const uint32_t scale = p.scales[source * (p.k / 16) + column / 16];
        const uint32_t flip = (scale >> 4) & 8;  // sign of the scale, at the code's sign bit
        scale_code = encode_scale(scale & 127);
        const uint32_t keep = (scale & 127) == 0 ? 8u : 15u;  // a zero scale leaves signed zeros
        const uint8_t* codes = p.codes + source * (p.k / 2) + column / 2;
        for (int pair = 0; pair < 2; ++pair) {  // columns 2t, 2t + 1 and 2t + 8, 2t + 9
          const uint32_t byte = codes[t + 4 * pair];
          const uint32_t low = ((byte & 15) ^ flip) & keep;
          const uint32_t high = ((byte >> 4) ^ flip) & keep;
          const int reg = 2 * pair + half;
          word |= place_code(low, reg) | place_code(high, reg) << 16;
        }
      }
      // Both halves of a lane's word belong to the same thread, so this is no race.
      uint32_t* to = reinterpret_cast<uint32_t*>(record + warp * 512 + lane * 16 + step * 4);
      uint32_t mask = 0;
      for (int pair = 0; pair < 2; ++pair) {
        mask |= place_code(15, 2 * pair + half) | place_code(15, 2 * pair + half) << 16;
      }
      *to = (*to & ~mask) | word;
      if (step % 2 == 0) {
        even_scale = scale_code;
      } else if (t == 0) {
        // Word step / 2 of the row pair; low half: row r, high half: row r + 8.
        *reinterpret_cast<uint16_t*>(record + kRecordCodeBytes + warp * 64 + (lane / 4) * 8 +
                                     (step / 2) * 4 + half * 2) =
            static_cast<uint16_t>(place_scales(even_scale, scale_code));
      }
    }
    if (k_block == 0 && t == 0) {
      p.row_multiplier[row] = real ? p.multiplier : 0.0f;
    }
  }
}

struct UnpackParams {
  const uint8_t* packed;
  const float* row_multiplier;
  __nv_bfloat16* out;
  int64_t n, k, k_blocks;
};

constexpr int kUnpackStride = kRecordColumns + 8;  // bf16; keeps the rows of a warp in other banks

/// One block a record: decoded into shared memory, then written in whole lines of 128 bytes.
__global__ void __launch_bounds__(128) unpack_kernel(const UnpackParams p) {
  __shared__ __align__(16) __nv_bfloat16 tile[kRecordRows * kUnpackStride];
  const int64_t k_block = blockIdx.x % p.k_blocks;
  const int64_t row_block = blockIdx.x / p.k_blocks;
  const uint8_t* record = p.packed + record_offset(row_block, k_block, p.k_blocks);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const PackedLane packed = {
      __ldcs(reinterpret_cast<const uint4*>(record + warp * 512 + lane * 16)),
      *reinterpret_cast<const uint2*>(record + kRecordCodeBytes + warp * 64 + (lane / 4) * 8)};
  uint32_t fragments[4][4];
  decode_lane(packed, scale_bias(), fragments);
  float multiplier[2] = {kRowMultiplier, kRowMultiplier};
#pragma unroll
  for (int half = 0; half < 2 && p.row_multiplier != nullptr; ++half) {
    // Padded to whole tiles, so rows past the end may be read.
    multiplier[half] = p.row_multiplier[row_block * kRecordRows + record_row(warp, lane, half)];
  }
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) {
      const int row = record_row(warp, lane, reg % 2);
      const int column = step * 16 + (lane % 4) * 2 + (reg / 2) * 8;
      const float by = multiplier[reg % 2];
      const __nv_bfloat162 pair = *reinterpret_cast<const __nv_bfloat162*>(&fragments[step][reg]);
      *reinterpret_cast<__nv_bfloat162*>(tile + row * kUnpackStride + column) =
          __floats2bfloat162_rn(__bfloat162float(pair.x) * by, __bfloat162float(pair.y) * by);
    }
  }
  __syncthreads();
  const int64_t columns = min(static_cast<int64_t>(kRecordColumns), p.k - k_block * kRecordColumns);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i * 16 + static_cast<int>(threadIdx.x) / 8;
    const int column = static_cast<int>(threadIdx.x) % 8 * 8;
    const int64_t out_row = row_block * kRecordRows + row;
    if (out_row < p.n && column < columns) {  // k is a multiple of 16
      *reinterpret_cast<uint4*>(p.out + out_row * p.k + k_block * kRecordColumns + column) =
          *reinterpret_cast<const uint4*>(tile + row * kUnpackStride + column);
    }
  }
}

}  // namespace

void pack_nvfp4(const Nvfp4Source& part,
                int64_t first_row,
                int64_t n,
                void* packed,
                float* row_multiplier,
                CUstream_st* stream,
                int64_t row_step) {
  CHECK(part.k % 16 == 0, "k must be a multiple of 16, got ", part.k);
  const int64_t end_row = first_row + (part.n - 1) * row_step + 1;
  CHECK(end_row <= n, "part past the end of the matrix");
  PackParams p{};
  p.codes = part.codes;
  p.scales = part.scales;
  p.packed = static_cast<uint8_t*>(packed);
  p.row_multiplier = row_multiplier;
  p.first_row = first_row;
  p.end_row = end_row == n ? padded_rows(n) : end_row;
  p.row_step = row_step;
  p.part_rows = part.n;
  p.k = part.k;
  p.k_blocks = k_blocks_of(part.k);
  p.multiplier = part.global_scale * kRowMultiplier;
  const int64_t row_blocks = ceil_div(p.end_row, kRecordRows) - first_row / kRecordRows;
  const int64_t blocks = row_blocks * p.k_blocks;
  CHECK(blocks < (int64_t{1} << 31), "matrix too large to pack in one launch");
  if (blocks == 0) {
    return;
  }
  pack_kernel<<<static_cast<unsigned>(blocks), 128, 0, stream>>>(p);
  CUDA_CHECK(cudaGetLastError());
}

void unpack_nvfp4(const void* packed,
                  const float* row_multiplier,
                  int64_t n,
                  int64_t k,
                  void* out,
                  CUstream_st* stream) {
  UnpackParams p{};
  p.packed = static_cast<const uint8_t*>(packed);
  p.row_multiplier = row_multiplier;
  p.out = static_cast<__nv_bfloat16*>(out);
  p.n = n;
  p.k = k;
  p.k_blocks = k_blocks_of(k);
  const int64_t blocks = ceil_div(n, kRecordRows) * p.k_blocks;
  unpack_kernel<<<static_cast<unsigned>(blocks), 128, 0, stream>>>(p);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace nibble::cuda
