// gemm_bf16_rows_sm90: y[m, n] f32 = x[m, k] bf16 * w[n, k]^T bf16 for few rows and a large matrix:
// the output head of a decode step, where reading w once is the work.
//
// Contract: w rows contiguous, k a multiple of 64, x and w 16-byte aligned; any m. The bits of a
// row depend on (n, k) only: every row count adds K in steps of 16 with one accumulator, and
// mma.sync and wgmma of every width round alike.
//
// Plan: one block a multiprocessor, which takes tiles of 128 columns of y (rows of w) and kTokens
// rows in turn. Warp 8 brings boxes of w, warp 9 boxes of x, into one ring of stages of 64 columns
// of K, so reading goes on while a tile is stored. Eight warps multiply: w is the 16-row operand,
// from registers; mma.sync up to 16 tokens, wgmma above. w does not depend on the kernel before and
// is asked for before it has ended.
#include <algorithm>
#include <string>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/device/ptx.cuh"
#include "backends/cuda/device/wgmma.cuh"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/tensor_map.h"
#include "base/check.h"
#include "ops/gemm.h"

namespace nibble {

extern const GemmBackend kGemmBf16RowsCuda;  // stores w in the same way

namespace {

using namespace nibble::cuda;  // NOLINT(google-build-using-namespace): the folder's own helpers

constexpr int kRows = 128;    // of w, a tile
constexpr int kColumns = 64;  // of K, a stage
constexpr int kWeightBytes = kRows * kColumns * 2;
constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 64;
constexpr int kRingBytes = 208 << 10;

struct Params {
  CUtensorMap w_map;
  CUtensorMap x_map;
  float* y;
  int64_t ldy;
  uint64_t weight_policy;
  int m, n, k_blocks, tiles, token_tiles;
};

template <int kTokens_>
struct Config {
  static constexpr int kTokens = kTokens_;
  static constexpr int kTokenBytes = kTokens * kColumns * 2;
  static constexpr int kStages = std::min(12, kRingBytes / (kWeightBytes + kTokenBytes));
  static constexpr int kTokensAt = kStages * kWeightBytes;
  static constexpr int kBarriersAt = kTokensAt + kStages * kTokenBytes;
  static constexpr int kSharedBytes = kBarriersAt + 2 * kStages * 8;
  static constexpr int kAccumulators = kTokens / 2;
  static constexpr bool kWarpMma = kTokens <= 16;
};

template <class C>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == C::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// A thread's accumulators are features first + {0, 8} of tokens 8 j + {0, 1}.
template <class C>
__device__ __forceinline__ void store_tile(const Params& p,
                                           int first,
                                           int token,
                                           const float (&acc)[C::kAccumulators]) {
  float* to = p.y + token * p.ldy + first;
#pragma unroll
  for (int j = 0; j < C::kTokens / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = i / 2 * 8;
      const int column = j * 8 + i % 2;
      if (token + column < p.m && first + row < p.n) {
        to[column * p.ldy + row] = acc[4 * j + i];
      }
    }
  }
}

template <class C>
__global__ void __launch_bounds__(kThreads, 1) rows_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = shared_address(shared);
  const uint32_t full = base + C::kBarriersAt;
  const uint32_t empty = full + C::kStages * 8;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    if ((base & 1023) != 0) {
      __trap();  // the swizzle and the descriptors assume it
    }
    for (int i = 0; i < C::kStages; ++i) {
      barrier_init(full + i * 8, 2);  // the two producers
      barrier_init(empty + i * 8, kConsumers);
    }
    barrier_init_fence();
  }
  __syncthreads();
  allow_next_kernel();

  Ring<C> ring;
  if (warp >= 8) {
    if (lane != 0) {
      return;
    }
    const bool weights = warp == 8;
    const CUtensorMap* map = weights ? &p.w_map : &p.x_map;
    const uint32_t bytes = weights ? kWeightBytes : C::kTokenBytes;
    const uint32_t at = base + (weights ? 0 : C::kTokensAt);
    const uint64_t policy = weights ? p.weight_policy : kEvictLast;
    tensor_prefetch(map);
    if (!weights) {
      wait_for_previous_kernel();
    }
    for (int tile = static_cast<int>(blockIdx.x); tile < p.tiles; tile += gridDim.x) {
      const int row = weights ? tile / p.token_tiles * kRows : tile % p.token_tiles * C::kTokens;
      for (int block = 0; block < p.k_blocks; ++block) {
        const uint32_t barrier = full + ring.stage * 8;
        barrier_wait(empty + ring.stage * 8, ring.parity ^ 1);
        barrier_expect_bytes(barrier, bytes);  // rows past the edge are zeros, and counted
        tensor_copy_3d(at + ring.stage * bytes, map, 0, row, block, barrier, policy);
        ring.advance();
      }
    }
    return;
  }

  // Rows l % 16 of this warp's 16, 16-byte chunk l / 16 of a step of 16 columns, swizzled.
  const uint32_t w_row = base + (warp * 16 + lane % 16) * 128;
  const auto load_fragments = [&](int stage, uint32_t(&a)[4][4]) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int chunk = (step * 2 + lane / 16) ^ (lane % 8);
      const uint4 v = load_matrices(w_row + stage * kWeightBytes + chunk * 16);
      a[step][0] = v.x;
      a[step][1] = v.y;
      a[step][2] = v.z;
      a[step][3] = v.w;
    }
  };
  for (int tile = static_cast<int>(blockIdx.x); tile < p.tiles; tile += gridDim.x) {
    float acc[C::kAccumulators];
#pragma unroll
    for (int i = 0; i < C::kAccumulators; ++i) {
      acc[i] = 0.0f;
    }
    if constexpr (C::kWarpMma) {
      // Row l % 8 of 16-byte chunk l / 8, swizzled; chunks 4 to 7 are 64 bytes away.
      const uint32_t x_at = base + C::kTokensAt + (lane % 8) * 128 + ((lane / 8) ^ (lane % 8)) * 16;
#pragma unroll 2
      for (int block = 0; block < p.k_blocks; ++block) {
        barrier_wait(full + ring.stage * 8, ring.parity);
        uint32_t a[4][4];
        load_fragments(ring.stage, a);
        const uint32_t x = x_at + ring.stage * C::kTokenBytes;
#pragma unroll
        for (int j = 0; j < C::kTokens / 8; ++j) {
          const uint4 low = load_matrices(x + j * 1024);
          const uint4 high = load_matrices((x ^ 64) + j * 1024);
          float(&d)[4] = *reinterpret_cast<float(*)[4]>(acc + 4 * j);
          mma_m16n8k16(d, a[0], low.x, low.y);
          mma_m16n8k16(d, a[1], low.z, low.w);
          mma_m16n8k16(d, a[2], high.x, high.y);
          mma_m16n8k16(d, a[3], high.z, high.w);
        }
        barrier_arrive(empty + ring.stage * 8);
        ring.advance();
      }
    } else {
      const auto multiply = [&](int stage, uint32_t(&a)[4][4]) {
        const uint32_t x = wgmma_descriptor_low(base + C::kTokensAt + stage * C::kTokenBytes);
        const uint32_t uniform = __shfl_sync(0xFFFFFFFFu, x, 0);
        pin_registers(a);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          WgmmaRs<C::kTokens>::run(acc, a[step], wgmma_descriptor(uniform + 2 * step));
        }
        wgmma_commit();
      };
      // Two sets of fragments: one is loaded while the products of the other run.
      uint32_t even[4][4];
      uint32_t odd[4][4];
      int before = -1;
      int block = 0;
      const auto next = [&](uint32_t(&a)[4][4]) {
        if (block == p.k_blocks) {
          return false;
        }
        barrier_wait(full + ring.stage * 8, ring.parity);
        load_fragments(ring.stage, a);
        multiply(ring.stage, a);
        wgmma_wait<1>();
        if (before >= 0) {
          barrier_arrive(empty + before * 8);
        }
        before = ring.stage;
        ring.advance();
        ++block;
        return true;
      };
#pragma unroll 1
      while (next(even) && next(odd)) {
      }
      wgmma_wait<0>();
      barrier_arrive(empty + before * 8);
    }
    store_tile<C>(p,
                  tile / p.token_tiles * kRows + warp * 16 + lane / 4,
                  tile % p.token_tiles * C::kTokens + lane % 4 * 2,
                  acc);
  }
}

// ---- the backend ----

Support supports(const GemmDesc& desc) {
  if (desc.device != Device::Kind::Cuda || desc.isa != 90) {
    return {false, "needs a Hopper GPU"};
  }
  if (desc.k % kColumns != 0) {
    return {false, "k must be a positive multiple of 64"};
  }
  return kGemmBf16RowsCuda.supports(desc);
}

std::vector<Tensor> packed_layout(const GemmDesc& desc) {
  return kGemmBf16RowsCuda.packed_layout(desc);
}

void pack(const GemmDesc& desc,
          std::span<const LinearPart> parts,
          std::span<const Tensor> slots,
          Stream stream) {
  kGemmBf16RowsCuda.pack(desc, parts, slots, stream);
}

size_t workspace_bytes(const GemmDesc& /*desc*/, int64_t /*max_rows*/) { return 0; }

template <class C>
void launch(const GemmDesc& desc, const GemmArgs& args, Stream stream) {
  const auto kernel = rows_kernel<C>;
  static const bool kReady = [&] {
    CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes));
    return true;
  }();
  (void)kReady;
  const int64_t m = args.x.shape[0];
  Params p{};
  p.w_map = matrix_map(args.packed[0].data, desc.n, desc.k, desc.k, kRows, 1);
  p.x_map = matrix_map(args.x.data, m, desc.k, args.x.stride[0], C::kTokens, 1);
  p.y = args.y.as<float>();
  p.ldy = args.y.stride[0];
  p.m = static_cast<int>(m);
  p.n = static_cast<int>(desc.n);
  p.k_blocks = static_cast<int>(desc.k / kColumns);
  p.token_tiles = static_cast<int>((m + C::kTokens - 1) / C::kTokens);
  p.tiles = static_cast<int>((desc.n + kRows - 1) / kRows) * p.token_tiles;
  p.weight_policy = p.token_tiles == 1 ? kEvictFirst : kEvictNormal;
  launch_overlapped(kernel,
                    {.grid = dim3(static_cast<unsigned>(std::min(p.tiles, multiprocessors()))),
                     .threads = kThreads,
                     .shared_bytes = C::kSharedBytes},
                    static_cast<cudaStream_t>(stream.native),
                    p);
}

void run(const GemmDesc& desc, const GemmArgs& args, Stream stream) {
  const int64_t rows = args.x.shape[0];
  CHECK(args.x.stride[0] % 8 == 0 && reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0,
        "rows of x must be aligned to 16 bytes");
  if (rows == 0) {
    return;
  }
  if (rows <= 8) {
    launch<Config<8>>(desc, args, stream);
  } else if (rows <= 16) {
    launch<Config<16>>(desc, args, stream);
  } else if (rows <= 32) {
    launch<Config<32>>(desc, args, stream);
  } else if (rows <= 64) {
    launch<Config<64>>(desc, args, stream);
  } else {
    launch<Config<128>>(desc, args, stream);
  }
}

}  // namespace

extern const GemmBackend kGemmBf16RowsSm90;
const GemmBackend kGemmBf16RowsSm90{
    .name = "gemm_bf16_rows_sm90",
    .family = "rows",
    .opt_in = false,
    .supports = supports,
    .packed_layout = packed_layout,
    .pack = pack,
    .workspace_bytes = workspace_bytes,
    .run = run,
    .packs_from_device = true,
    .keeps_bf16 = true,
};

}  // namespace nibble
