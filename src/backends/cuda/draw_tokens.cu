// From logits to tokens on the device: the arithmetic of the host's sampler without filters, in two
// kernels. The vocabulary is cut into parts whose borders depend on its size only; a block finds
// the largest logit of its part and the sum of exponentials relative to it, in float64; one block a
// row joins the parts in order and finds where the drawn share falls. So a row's token does not
// depend on the batch. Only the order of the sums differs from the host's.
#include <cuda_runtime.h>

#include "backends/cuda/draw_tokens.h"
#include "backends/cuda/launch.cuh"
#include "base/check.h"

namespace nibble::cuda {
namespace {

constexpr int kParts = 64;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

struct Part {
  double sum;  // of exp((logit - top) * scale)
  float top;
  int32_t index;  // of top, the lowest; -1: nothing finite
  int32_t bad;    // a NaN was seen
  int32_t unused;
};

struct Best {
  float top;
  int32_t index;
  int32_t bad;
};

__device__ __forceinline__ Best better(const Best& a, const Best& b) {
  const bool second =
      b.index >= 0 && (a.index < 0 || b.top > a.top || (b.top == a.top && b.index < a.index));
  return {second ? b.top : a.top, second ? b.index : a.index, a.bad | b.bad};
}

struct Params {
  const float* logits;
  const DrawRequest* requests;
  Part* parts;  // [rows, kParts]
  DrawResult* results;
  int64_t stride;
  int vocab, part_size;
};

__global__ void __launch_bounds__(kThreads) draw_parts_kernel(const Params p) {
  __shared__ Best warp_best[kWarps];
  __shared__ double warp_sum[kWarps];
  begin_overlapped();
  const int row = static_cast<int>(blockIdx.y);
  const int begin = static_cast<int>(blockIdx.x) * p.part_size;
  const int end = min(begin + p.part_size, p.vocab);
  const float* logits = p.logits + row * p.stride;
  const double scale = p.requests[row].scale;
  const int thread = static_cast<int>(threadIdx.x);
  Best best{-INFINITY, -1, 0};
  for (int i = begin + thread; i < end; i += kThreads) {
    const float v = logits[i];
    best.bad |= isnan(v) ? 1 : 0;
    if (v > best.top) {
      best.top = v;
      best.index = i;
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    best = better(best,
                  {__shfl_xor_sync(kAllLanes, best.top, step),
                   __shfl_xor_sync(kAllLanes, best.index, step),
                   __shfl_xor_sync(kAllLanes, best.bad, step)});
  }
  if (thread % 32 == 0) {
    warp_best[thread / 32] = best;
  }
  __syncthreads();
  best = warp_best[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) {
    best = better(best, warp_best[i]);
  }
  double sum = 0.0;
  if (best.index >= 0) {
    for (int i = begin + thread; i < end; i += kThreads) {
      sum += exp((static_cast<double>(logits[i]) - static_cast<double>(best.top)) * scale);
    }
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, step);
  }
  if (thread % 32 == 0) {
    warp_sum[thread / 32] = sum;
  }
  __syncthreads();
  if (thread == 0) {
    sum = 0.0;
    for (int i = 0; i < kWarps; ++i) {
      sum += warp_sum[i];
    }
    p.parts[row * kParts + static_cast<int>(blockIdx.x)] = {sum, best.top, best.index, best.bad, 0};
  }
}

/// Where in part [begin, end) the running sum of exp((logit - top) * scale) passes `target`; the
/// last finite token where it falls short by rounding. One warp.
__device__ int find_in_part(
    const float* logits, int begin, int end, float top, double scale, double target) {
  const int lane = static_cast<int>(threadIdx.x);
  double before = 0.0;
  int last = -1;
  for (int base = begin; base < end; base += 32) {
    const int i = base + lane;
    const float v = i < end ? logits[i] : -INFINITY;
    double running =
        v > -INFINITY ? exp((static_cast<double>(v) - static_cast<double>(top)) * scale) : 0.0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const double lower = __shfl_up_sync(kAllLanes, running, step);
      running += lane >= step ? lower : 0.0;
    }
    running += before;
    const unsigned finite = __ballot_sync(kAllLanes, v > -INFINITY);
    const unsigned passed = __ballot_sync(kAllLanes, v > -INFINITY && target < running);
    if (passed != 0) {
      return base + __ffs(static_cast<int>(passed)) - 1;
    }
    if (finite != 0) {
      last = base + 31 - __clz(static_cast<int>(finite));
    }
    before = __shfl_sync(kAllLanes, running, 31);
  }
  return last;
}

__global__ void __launch_bounds__(kParts) draw_finish_kernel(const Params p) {
  __shared__ Part parts[kParts];
  __shared__ double weights[kParts];
  __shared__ int chosen;
  __shared__ double rest;
  begin_overlapped();
  const int row = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const DrawRequest request = p.requests[row];
  parts[thread] = p.parts[row * kParts + thread];
  __syncthreads();
  Best best{-INFINITY, -1, 0};
  for (int i = 0; i < kParts; ++i) {
    best = better(best, {parts[i].top, parts[i].index, parts[i].bad});
  }
  const Part mine = parts[thread];
  weights[thread] =
      mine.index >= 0
          ? mine.sum *
                exp((static_cast<double>(mine.top) - static_cast<double>(best.top)) * request.scale)
          : 0.0;
  __syncthreads();
  const bool finite = best.index >= 0 && best.bad == 0 && !isinf(best.top);
  double total = 0.0;
  for (int i = 0; i < kParts; ++i) {
    total += weights[i];
  }
  if (thread == 0) {
    const double target = request.unit * total;
    double before = 0.0;
    chosen = -1;
    for (int i = 0; i < kParts && finite; ++i) {
      if (weights[i] > 0.0) {
        chosen = i;  // the last with a share, when rounding makes the sum fall short
        rest = target - before;
        before += weights[i];
        if (target < before) {
          break;
        }
      }
    }
  }
  __syncthreads();
  int token = finite ? best.index : -1;
  if (finite && request.greedy == 0) {
    if (thread >= 32) {
      return;
    }
    const int begin = chosen * p.part_size;
    token = find_in_part(p.logits + row * p.stride,
                         begin,
                         min(begin + p.part_size, p.vocab),
                         best.top,
                         request.scale,
                         rest);
  }
  if (thread == 0) {
    DrawResult result{};
    result.token = token;
    result.logit = token >= 0 ? p.logits[row * p.stride + token] : 0.0f;
    result.log_total = static_cast<double>(best.top) * request.scale + log(total);
    p.results[row] = result;
  }
}

}  // namespace

int64_t draw_workspace_bytes(int64_t rows) {
  return rows * kParts * static_cast<int64_t>(sizeof(Part));
}

void draw_tokens(const Tensor& logits,
                 const Tensor& requests,
                 const Tensor& workspace,
                 const Tensor& results,
                 Stream stream) {
  const int64_t rows = logits.shape[0];
  if (rows == 0) {
    return;
  }
  CHECK(workspace.size_bytes() >= draw_workspace_bytes(rows), "workspace too small to draw");
  Params p{};
  p.logits = logits.as<float>();
  p.requests = reinterpret_cast<const DrawRequest*>(requests.as<uint8_t>());
  p.parts = reinterpret_cast<Part*>(workspace.as<uint8_t>());
  p.results = reinterpret_cast<DrawResult*>(results.as<uint8_t>());
  p.stride = logits.stride[0];
  p.vocab = static_cast<int>(logits.shape[1]);
  p.part_size = (p.vocab + kParts - 1) / kParts;
  auto* native = static_cast<cudaStream_t>(stream.native);
  launch_overlapped(
      draw_parts_kernel, dim3(kParts, static_cast<unsigned>(rows)), kThreads, native, p);
  launch_overlapped(draw_finish_kernel, dim3(static_cast<unsigned>(rows)), kParts, native, p);
}

}  // namespace nibble::cuda
