// gemm_bf16_rows_cuda: y[m, n] f32 = x[m, k] bf16 * w[n, k]^T bf16 for few rows and a large matrix:
// the output head of a decode step, where reading w once is the work.
//
// Contract: w rows contiguous, k a multiple of 32, x and w 16-byte aligned; any m, 64 rows at a
// time. The bits of a row depend on (n, k) only: every row count runs the same chain of products.
//
// Plan: a block of eight warps computes 16 columns (rows of w); warp i takes every eighth piece of
// 32 along k, 16 bytes a lane of two rows of w straight from memory, and multiplies it with eight
// rows of x a time by two mma.m16n8k16. Which k goes to which place of the fragments is the same
// permutation for w and x, so nothing is shuffled. The warps' sums are joined in order in shared
// memory.
//
// Why beside cuBLASLt: its algorithm for many rows reads a [151936, 4096] matrix at half the
// memory's speed for one row, and another algorithm for few rows would give other bits.
#include <string>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/launch.cuh"
#include "base/check.h"
#include "ops/gemm.h"

namespace nibble {
namespace {

using namespace nibble::cuda;  // NOLINT(google-build-using-namespace): the folder's own helpers

using Bf16 = __nv_bfloat16;

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kColumns = 16;  // of y, a block
constexpr int kPiece = 32;    // along k, a warp
constexpr int kMostRows = 64;
constexpr int kAhead = 4;  // pieces in flight

struct Params {
  const Bf16* x;
  const Bf16* w;
  float* y;
  int64_t ldx, ldy;
  int m, n, k;
};

__device__ __forceinline__ void multiply(
    float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint4 load_once(const Bf16* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// kRowBlocks: blocks of eight rows of x.
template <int kRowBlocks>
__global__ void __launch_bounds__(kThreads) rows_kernel(const Params p) {
  __shared__ float partial[kWarps][kColumns][8 * kRowBlocks + 1];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = lane / 4;  // row of a fragment
  const int place = lane % 4;
  const int first = static_cast<int>(blockIdx.x) * kColumns;
  // Beyond the last column the last one is read again and not stored.
  const Bf16* low = p.w + static_cast<int64_t>(min(first + group, p.n - 1)) * p.k + place * 8;
  const Bf16* high = p.w + static_cast<int64_t>(min(first + group + 8, p.n - 1)) * p.k + place * 8;
  float sum[kRowBlocks][4] = {};
  uint4 a[kAhead][2];
  const int pieces = p.k / kPiece;
#if __CUDA_ARCH__ >= 900
  allow_next_kernel();
#endif
  // Weights do not wait for the kernel before.
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int piece = warp + i * kWarps;
    if (piece < pieces) {
      a[i][0] = load_once(low + piece * kPiece);
      a[i][1] = load_once(high + piece * kPiece);
    }
  }
  begin_overlapped();
  for (int base = warp; base < pieces; base += kAhead * kWarps) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int piece = base + i * kWarps;
      if (piece >= pieces) {
        break;
      }
      const uint4 wl = a[i][0];
      const uint4 wh = a[i][1];
      const int next = piece + kAhead * kWarps;
      if (next < pieces) {
        a[i][0] = load_once(low + next * kPiece);
        a[i][1] = load_once(high + next * kPiece);
      }
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
        const int row = block * 8 + group;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (row < p.m) {
          x = __ldg(reinterpret_cast<const uint4*>(p.x + row * p.ldx + piece * kPiece + place * 8));
        }
        multiply(sum[block], wl.x, wh.x, wl.y, wh.y, x.x, x.y);
        multiply(sum[block], wl.z, wh.z, wl.w, wh.w, x.z, x.w);
      }
    }
  }
#pragma unroll
  for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      partial[warp][group + 8 * (i / 2)][block * 8 + place * 2 + i % 2] = sum[block][i];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kColumns * 8 * kRowBlocks; i += kThreads) {
    const int column = i % kColumns;
    const int row = i / kColumns;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      total += partial[w][column][row];
    }
    if (row < p.m && first + column < p.n) {
      p.y[row * p.ldy + first + column] = total;
    }
  }
}

// ---- the backend ----

Support supports(const GemmDesc& desc) {
  if (desc.device != Device::Kind::Cuda || desc.isa < 80) {
    return {false, "needs CUDA and compute capability 8.0"};
  }
  if (desc.mode != kBf16 || desc.in != DType::BF16 || desc.out != DType::F32) {
    return {false, "computes bf16 weights with f32 output only"};
  }
  if (desc.k % kPiece != 0 || desc.k <= 0 || desc.n <= 0) {
    return {false, "k must be a positive multiple of 32"};
  }
  if (desc.pre_quant_scale || desc.epilogue != Epilogue::None) {
    return {false, "has neither pre_quant_scale nor epilogue"};
  }
  return {true, {}};
}

std::vector<Tensor> packed_layout(const GemmDesc& desc) {
  return {Tensor(nullptr, DType::BF16, {desc.n, desc.k}, Device{desc.device, 0})};
}

void pack(const GemmDesc& desc,
          std::span<const LinearPart> parts,
          std::span<const Tensor> slots,
          Stream stream) {
  auto* native = static_cast<cudaStream_t>(stream.native);
  auto* to = slots[0].as<uint16_t>();
  for (const LinearPart& part : parts) {
    const int64_t count = part.weight.shape[0] * desc.k;
    if (to != part.weight.data) {  // else a loader has put it there
      CUDA_CHECK(cudaMemcpyAsync(to,
                                 part.weight.data,
                                 static_cast<size_t>(count) * sizeof(uint16_t),
                                 cudaMemcpyDefault,
                                 native));
    }
    to += count;
  }
  CUDA_CHECK(cudaStreamSynchronize(native));  // the parts may go away
}

size_t workspace_bytes(const GemmDesc& /*desc*/, int64_t /*max_rows*/) { return 0; }

template <int kRowBlocks>
void launch(const Params& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((p.n + kColumns - 1) / kColumns);
  launch_overlapped(rows_kernel<kRowBlocks>, dim3(blocks), kThreads, stream, p);
}

void run(const GemmDesc& desc, const GemmArgs& args, Stream stream) {
  auto* native = static_cast<cudaStream_t>(stream.native);
  const int64_t rows = args.x.shape[0];
  CHECK(args.x.stride[0] % 8 == 0 && reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0,
        "rows of x must be aligned to 16 bytes");
  for (int64_t begin = 0; begin < rows; begin += kMostRows) {
    Params p{};
    p.x = reinterpret_cast<const Bf16*>(args.x.as<uint16_t>() + begin * args.x.stride[0]);
    p.w = reinterpret_cast<const Bf16*>(args.packed[0].as<uint16_t>());
    p.y = args.y.as<float>() + begin * args.y.stride[0];
    p.ldx = args.x.stride[0];
    p.ldy = args.y.stride[0];
    p.m = static_cast<int>(std::min<int64_t>(kMostRows, rows - begin));
    p.n = static_cast<int>(desc.n);
    p.k = static_cast<int>(desc.k);
    if (p.m <= 8) {
      launch<1>(p, native);
    } else if (p.m <= 16) {
      launch<2>(p, native);
    } else if (p.m <= 32) {
      launch<4>(p, native);
    } else {
      launch<8>(p, native);
    }
  }
}

}  // namespace

extern const GemmBackend kGemmBf16RowsCuda;
const GemmBackend kGemmBf16RowsCuda{
    .name = "gemm_bf16_rows_cuda",
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
