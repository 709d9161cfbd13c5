#pragma once
// nvfp4_w4a16_sm90 for up to 8 tokens, without any exchange between thread blocks: the device side.
//
// Contract. That of the other kernels of nvfp4_w4a16_sm90: packed matrix, cuts of K and order of
// additions, so the same bits; any n, k a multiple of 8 elements.
//
// Plan (nvfp4_w4a16_strips.h). A block has whole strips of 16 features. An item is a piece of a
// strip's K, or all of them (p.plan.whole); warp w takes items w, w + warps, ... A warp is alone:
// it brings its records into its own ring of stages, decodes, multiplies with mma.sync, and fills a
// stage again as soon as its lanes have read it. Sums of pieces meet in shared memory after a block
// barrier and are added in order; a warp with a whole strip adds in registers.
// Weights do not depend on the previous kernel: rings are full before griddepcontrol.wait. They are
// small enough for the next product's blocks to be resident beside this one's, so that the memory
// does not rest between products.
//
// x lies in shared memory in the order of the B fragments: a 64-byte half of a K64 block holds for
// t = 0..3 the four words of lane t of two K16 steps.

#include <cstdint>

#include <cuda.h>
#include <cuda_bf16.h>

#include "backends/cuda/device/nvfp4_decode.cuh"
#include "backends/cuda/device/ptx.cuh"
#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_w4a16_store.cuh"
#include "backends/cuda/nvfp4_w4a16_strips.h"

namespace nibble::cuda {

struct W4A16StripsParams : W4A16Params {
  const __nv_bfloat16* x;
  int64_t ldx;
  int k;
  W4A16StripsPlan plan;
  FastDivisor by_pieces, by_token_vectors, by_blocks;
  // The matrix as lines of a tile's K64 blocks, 4608 bytes as 32-bit words; boxes of a strip's
  // codes (128 words) and scales (16 words) of a stage's blocks.
  CUtensorMap codes_map, scales_map;
};

__device__ __forceinline__ int first_strip_of(const W4A16StripsParams& p, int block) {
  return p.by_blocks.divide(static_cast<uint32_t>(block) * static_cast<uint32_t>(p.plan.strips));
}

/// A run of K64 blocks of a strip: one piece, or all.
struct W4A16StripItem {
  int strip;
  int begin, end;
};

__device__ __forceinline__ int tile_of_strip(int strip) {
  return static_cast<int>(static_cast<uint32_t>(strip) / kStripsOfTile);
}

template <bool kWhole>
__device__ __forceinline__ W4A16StripItem strip_item(const W4A16StripsParams& p, int item) {
  const int first_strip = first_strip_of(p, static_cast<int>(blockIdx.x));
  if (kWhole) {
    return {first_strip + item, 0, p.cuts.k_blocks};
  }
  const int local = p.by_pieces.divide(item);
  const int strip = first_strip + local;
  const int tile_begin = tile_of_strip(strip) * p.cuts.k_blocks;
  const int unit = p.cuts.unit_of(tile_begin) + item - local * p.plan.pieces;
  const int begin = p.cuts.unit_begin(min(unit, p.cuts.units)) - tile_begin;
  const int end = p.cuts.unit_begin(min(unit + 1, p.cuts.units)) - tile_begin;
  return {strip, max(begin, 0), min(end, p.cuts.k_blocks)};
}

/// Strips and items of this block.
__device__ __forceinline__ int strips_of_block(const W4A16StripsParams& p) {
  const auto block = static_cast<int>(blockIdx.x);
  return first_strip_of(p, block + 1) - first_strip_of(p, block);
}
template <bool kWhole>
__device__ __forceinline__ int items_of_block(const W4A16StripsParams& p) {
  return kWhole ? strips_of_block(p) : strips_of_block(p) * p.plan.pieces;
}

__device__ __forceinline__ void store_shared_16(uint32_t address, const float4& v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "f"(v.x),
               "f"(v.y),
               "f"(v.z),
               "f"(v.w)
               : "memory");
}

/// True in one lane of the warp, which must be together.
__device__ __forceinline__ bool elect_lane() {
  uint32_t elected;
  asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xFFFFFFFF;\n selp.u32 %0, 1, 0, p;\n}"
               : "=r"(elected));
  return elected != 0;
}

/// A warp's loads: walks over the same items as its products, some stages ahead.
template <bool kWhole>
struct W4A16StripLoader {
  int line;                     // the next K64 block, all tiles in a row
  int codes_word, scales_word;  // the strip's in it
  int left;                     // K64 blocks of the item at hand
  int item;                     // the next one

  __device__ __forceinline__ void next_item(const W4A16StripsParams& p) {
    while (item < items_of_block<kWhole>(p)) {
      const W4A16StripItem s = strip_item<kWhole>(p, item);
      item += p.plan.warps;
      left = s.end - s.begin;
      if (left > 0) {
        const auto strip = static_cast<uint32_t>(s.strip);
        const auto record = static_cast<int>(strip % kStripsOfTile / 4) * kRecordBytes;
        const auto quarter = static_cast<int>(strip % 4);
        line = tile_of_strip(s.strip) * p.cuts.k_blocks + s.begin;
        codes_word = (record + quarter * 512) / 4;
        scales_word = (record + kRecordCodeBytes + quarter * 64) / 4;
        return;
      }
    }
    left = -1;  // all is loaded
  }
  /// Fills the stage at `to`; nothing once all is loaded. All lanes call it, one starts the copies.
  __device__ __forceinline__ void fill(const W4A16StripsParams& p, uint32_t to, uint32_t barrier) {
    if (left >= kStripStage) {
      if (elect_lane()) {
        barrier_expect_bytes(barrier, kStripStage * kStripBytes);
        tensor_copy_3d(to, &p.codes_map, codes_word, line, 0, barrier, kEvictFirst);
        tensor_copy_3d(
            to + kStripStage * 512, &p.scales_map, scales_word, line, 0, barrier, kEvictFirst);
      }
      left -= kStripStage;
      line += kStripStage;
    } else if (left > 0) {
      if (elect_lane()) {
        barrier_expect_bytes(barrier, left * kStripBytes);
#pragma unroll 1
        for (int b = 0; b < left; ++b) {
          const uint8_t* from = p.packed + static_cast<int64_t>(line + b) * kTileRecordBytes;
          bulk_copy(to + b * 512, from + codes_word * 4, 512, barrier, kEvictFirst);
          bulk_copy(
              to + kStripStage * 512 + b * 64, from + scales_word * 4, 64, barrier, kEvictFirst);
        }
      }
      left = 0;
    }
    if (left == 0) {
      next_item(p);
    }
  }
};

/// acc += a strip's K64 block times x: its two halves, in the order of the B fragments.
__device__ __forceinline__ void multiply_strip_block(
    float (&acc)[4], const PackedLane& packed, uint32_t bias, const uint4& x0, const uint4& x1) {
  uint32_t a[4][4];
  decode_lane(packed, bias, a);
  mma_m16n8k16(acc, a[0], x0.x, x0.y);
  mma_m16n8k16(acc, a[1], x0.z, x0.w);
  mma_m16n8k16(acc, a[2], x1.x, x1.y);
  mma_m16n8k16(acc, a[3], x1.z, x1.w);
}

__device__ __forceinline__ uint32_t word_of(const uint4& v, uint32_t index) {
  return (index & 2) != 0 ? ((index & 1) != 0 ? v.w : v.z) : ((index & 1) != 0 ? v.y : v.x);
}

/// Word q of the vectors of lanes 4 i .. 4 i + 3, for lane 4 i + q.
__device__ __forceinline__ uint4 transpose_words(const uint4& v, uint32_t q) {
  constexpr uint32_t kAll = 0xFFFFFFFFu;
  const uint4 from = {word_of(v, q),  // of lane q ^ 0, q ^ 1, ...
                      __shfl_xor_sync(kAll, word_of(v, q ^ 1), 1),
                      __shfl_xor_sync(kAll, word_of(v, q ^ 2), 2),
                      __shfl_xor_sync(kAll, word_of(v, q ^ 3), 3)};
  return {word_of(from, q), word_of(from, q ^ 1), word_of(from, q ^ 2), word_of(from, q ^ 3)};
}

/// x of all tokens to shared memory, in fragment order, zeros from k on: four lanes load 64 bytes,
/// half a K64 block, and exchange words.
__device__ __forceinline__ void load_strip_tokens(const W4A16StripsParams& p, uint32_t tokens) {
  constexpr int kAtOnce = 4;
  const int vectors = p.cuts.k_blocks * 8;  // of 16 bytes, a token
  const int total = p.m * vectors;
  const int threads = static_cast<int>(blockDim.x);
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x - lane); first < total;
       first += kAtOnce * threads) {
    uint4 v[kAtOnce];
    uint32_t to[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int index = first + i * threads + static_cast<int>(lane);
      v[i] = make_uint4(0, 0, 0, 0);
      if (index < total) {
        const int token = p.by_token_vectors.divide(index);
        const int at = index - token * vectors;
        to[i] = tokens + token * p.plan.token_stride + at * 16;
        if (at * 8 < p.k) {
          v[i] = __ldcg(reinterpret_cast<const uint4*>(p.x + token * p.ldx + at * 8));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int index = first + i * threads;
      if (index < total) {  // all lanes of the warp
        v[i] = transpose_words(v[i], lane % 4);
        if (index + static_cast<int>(lane) < total) {
          store_shared_16(to[i],
                          make_float4(__uint_as_float(v[i].x),
                                      __uint_as_float(v[i].y),
                                      __uint_as_float(v[i].z),
                                      __uint_as_float(v[i].w)));
        }
      }
    }
  }
}

template <bool kWhole, W4A16Output kOutput>
__global__ void __launch_bounds__(kWhole ? 512 : 640, 2) nvfp4_w4a16_sm90_strips(
    const __grid_constant__ W4A16StripsParams p) {
  constexpr int kStage = kStripStage * kStripBytes;
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t base = shared_address(shared);
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
  const uint32_t lane = threadIdx.x % 32;
  allow_next_kernel();

  const int first_strip = first_strip_of(p, static_cast<int>(blockIdx.x));
  const uint32_t barriers = base + warp * p.plan.stages * 8;
  const uint32_t ring_bytes = p.plan.stages * kStage;
  const uint32_t ring = base + p.plan.ring_at + warp * ring_bytes;
  if (lane == 0) {
    for (int i = 0; i < p.plan.stages; ++i) {
      barrier_init(barriers + i * 8, 1);
    }
    barrier_init_fence();
  }
  __syncwarp();
  W4A16StripLoader<kWhole> loader{0, 0, 0, 0, warp};
  loader.next_item(p);
#pragma unroll 1
  for (int i = 0; i < p.plan.stages; ++i) {
    loader.fill(p, ring + i * kStage, barriers + i * 8);
  }
  // Row multipliers and bias of the strips that this warp stores: they do not depend on the
  // previous kernel either. Lane 4 r keeps those of lanes 4 r .. 4 r + 3.
  const uint32_t rows_at = base + p.plan.rows_at + lane / 4 * 16;
#pragma unroll 1
  for (int local = warp; local < strips_of_block(p); local += p.plan.warps) {
    if (lane % 4 == 0) {
      W4A16Store<kOutput> output;
      output.load(p, (first_strip + local) * kStripRows + static_cast<int>(lane / 4) * 2);
      store_shared_16(
          rows_at + local * 128,
          make_float4(output.multiplier[0], output.multiplier[1], output.bias[0], output.bias[1]));
    }
  }
  const auto store = [&](int strip, const float4& v) {
    const uint4 row = load_shared_16(rows_at + (strip - first_strip) * 128);
    W4A16Store<kOutput> output;
    output.feature = strip * kStripRows + static_cast<int>(lane / 4) * 2;
    output.multiplier[0] = __uint_as_float(row.x);
    output.multiplier[1] = __uint_as_float(row.y);
    output.bias[0] = __uint_as_float(row.z);
    output.bias[1] = __uint_as_float(row.w);
    output.store(p, static_cast<int>(lane % 4) * 2, v.x, v.y, v.z, v.w);
  };

  wait_for_previous_kernel();
  load_strip_tokens(p, base + p.plan.tokens_at);
  __syncthreads();

  const uint32_t bias = scale_bias();
  // Lanes without a token take the last one's x: their sums are not stored.
  const uint32_t own_token = min(lane / 4, static_cast<uint32_t>(p.m - 1));
  const uint32_t tokens_at =
      keep_in_register(base + p.plan.tokens_at + own_token * p.plan.token_stride + lane % 4 * 16);
  const uint32_t codes_at = keep_in_register(ring + lane * 16);
  const uint32_t scales_at = keep_in_register(ring + kStripStage * 512 + lane / 4 * 8);
  uint32_t at = 0;  // of the stage at hand, in the ring
  uint32_t barrier = barriers;
  uint32_t parity = 0;
#pragma unroll 1
  for (int item = warp; item < items_of_block<kWhole>(p); item += p.plan.warps) {
    const W4A16StripItem s = strip_item<kWhole>(p, item);
    if (s.begin >= s.end) {
      continue;
    }
    float acc[4];
    float total[4];  // kWhole only
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      acc[i] = 0.0f;
      total[i] = -0.0f;  // -0 + v is v for every v
    }
    int piece_end = s.end;
    const auto find_piece_end = [&](int block) {
      const int tile_begin = tile_of_strip(s.strip) * p.cuts.k_blocks;
      const int unit = p.cuts.unit_of(tile_begin + block);
      piece_end = min(p.cuts.unit_begin(unit + 1) - tile_begin, s.end);
    };
    if constexpr (kWhole) {
      find_piece_end(0);
    }
    uint32_t x_from = tokens_at + s.begin * 128;
    const auto multiply = [&](int b) {  // block b of the stage
      const PackedLane packed = {load_shared_16(codes_at + at + b * 512),
                                 load_shared_8(scales_at + at + b * 64)};
      const uint4 x0 = load_shared_16(x_from + b * 128);
      const uint4 x1 = load_shared_16(x_from + b * 128 + 64);
      multiply_strip_block(acc, packed, bias, x0, x1);
    };
    const auto end_piece = [&](int block) {
      if constexpr (kWhole) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total[i] += acc[i];
          acc[i] = 0.0f;
        }
        if (block < s.end) {
          find_piece_end(block);
        }
      }
    };
    int block = s.begin;
#pragma unroll 1
    while (block < s.end) {
      barrier_wait(barrier, parity);
      if (block + kStripStage <= piece_end) {
#pragma unroll
        for (int b = 0; b < kStripStage; ++b) {
          multiply(b);
        }
        block += kStripStage;
        if (kWhole && block == piece_end) {
          end_piece(block);
        }
      } else {
        const int stop = min(block + kStripStage, s.end);
#pragma unroll 1
        for (int b = 0; block < stop; ++b) {
          multiply(b);
          if (++block == piece_end) {
            end_piece(block);
          }
        }
      }
      x_from += kStripStage * 128;
      __syncwarp();  // all lanes have read the stage
      loader.fill(p, ring + at, barrier);
      at += kStage;
      barrier += 8;
      if (at == ring_bytes) {
        at = 0;
        barrier = barriers;
        parity ^= 1;
      }
    }
    if constexpr (kWhole) {
      store(s.strip, make_float4(total[0], total[1], total[2], total[3]));
    } else {
      store_shared_16(base + p.plan.parts_at + item * 512 + lane * 16,
                      make_float4(acc[0], acc[1], acc[2], acc[3]));
    }
  }
  if constexpr (!kWhole) {
    __syncthreads();
#pragma unroll 1
    for (int local = warp; local < strips_of_block(p); local += p.plan.warps) {
      const int tile_begin = tile_of_strip(first_strip + local) * p.cuts.k_blocks;
      const int pieces =
          p.cuts.unit_of(tile_begin + p.cuts.k_blocks - 1) - p.cuts.unit_of(tile_begin) + 1;
      float4 sum = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
      const uint32_t from = base + p.plan.parts_at + local * p.plan.pieces * 512 + lane * 16;
#pragma unroll 4
      for (int i = 0; i < pieces; ++i) {
        const uint4 part = load_shared_16(from + i * 512);
        sum.x += __uint_as_float(part.x);
        sum.y += __uint_as_float(part.y);
        sum.z += __uint_as_float(part.z);
        sum.w += __uint_as_float(part.w);
      }
      store(first_strip + local, sum);
    }
  }
}

}  // namespace nibble::cuda
