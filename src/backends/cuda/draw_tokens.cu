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
  int64_t stride;  // of logits
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
  if (finite && request.greedy == 0 && request.candidates == 0) {
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

// ---- the best of a row, for filters ----

constexpr int kSelectThreads = 1024;
constexpr int kBins = 2048;

// Larger floats have larger keys.
__device__ __forceinline__ uint32_t key_of(float v) {
  const uint32_t bits = __float_as_uint(v);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// One block a row: the key of the last candidate is found digit by digit (11, 11 and 10 bits) from
// counts; then larger keys are written in any order and as many equal ones as there is room for,
// those with the lowest ids.
__global__ void __launch_bounds__(kSelectThreads) candidates_kernel(const Params p,
                                                                    DrawCandidate* candidates) {
  __shared__ int counts[kBins];
  __shared__ int warp_counts[kSelectThreads / 32];
  __shared__ int digit;
  __shared__ int wanted;
  __shared__ int written;
  begin_overlapped();
  const int row = static_cast<int>(blockIdx.x);
  if (p.requests[row].candidates == 0) {
    return;
  }
  const float* logits = p.logits + row * p.stride;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  if (thread == 0) {
    wanted = min(static_cast<int>(kDrawCandidates), p.vocab);
    written = 0;
  }
  uint32_t prefix = 0;
  uint32_t mask = 0;
  int equal = 0;  // keys with the final prefix
#pragma unroll 1
  for (int shift : {21, 10, 0}) {
    const uint32_t bins = shift == 0 ? 1024 : kBins;
    for (int i = thread; i < kBins; i += kSelectThreads) {
      counts[i] = 0;
    }
    __syncthreads();
    for (int i = thread; i < p.vocab; i += kSelectThreads) {
      const uint32_t key = key_of(logits[i]);
      if ((key & mask) == prefix) {
        atomicAdd(&counts[(key >> shift) & (bins - 1)], 1);
      }
    }
    __syncthreads();
    if (thread < 32) {  // from the top: the first digit that fills what is wanted
      int above = 0;
      const int need = wanted;
      for (int base = static_cast<int>(bins) - 32; base >= 0; base -= 32) {
        const int bin = base + 31 - lane;
        int running = counts[bin];
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
          const int lower = __shfl_up_sync(kAllLanes, running, step);
          running += lane >= step ? lower : 0;
        }
        const unsigned filled = __ballot_sync(kAllLanes, above + running >= need);
        if (filled != 0) {
          const int first = __ffs(static_cast<int>(filled)) - 1;
          const int before = __shfl_sync(kAllLanes, running, max(first - 1, 0));
          if (lane == 0) {
            digit = base + 31 - first;
            wanted = need - above - (first > 0 ? before : 0);
          }
          break;
        }
        above += __shfl_sync(kAllLanes, running, 31);
      }
    }
    __syncthreads();
    prefix |= static_cast<uint32_t>(digit) << shift;
    mask |= (bins - 1) << shift;
    equal = counts[digit];
    __syncthreads();
  }
  DrawCandidate* to = candidates + static_cast<int64_t>(row) * kDrawCandidates;
  const int room = wanted;  // for keys equal to the prefix
  const bool all_equal = equal == room;
  for (int i = thread; i < p.vocab; i += kSelectThreads) {
    const float v = logits[i];
    const uint32_t key = key_of(v);
    if (key > prefix || (all_equal && key == prefix)) {
      to[atomicAdd(&written, 1)] = {v, i};
    }
  }
  if (all_equal) {
    return;
  }
  __syncthreads();
  int taken = 0;
  for (int base = 0; base < p.vocab && taken < room; base += kSelectThreads) {
    const int i = base + thread;
    const bool tie = i < p.vocab && key_of(logits[i]) == prefix;
    const unsigned ties = __ballot_sync(kAllLanes, tie);
    if (lane == 0) {
      warp_counts[thread / 32] = __popc(ties);
    }
    __syncthreads();
    int before = taken;
    for (int w = 0; w < thread / 32; ++w) {
      before += warp_counts[w];
    }
    const int rank = before + __popc(ties & ((1u << lane) - 1));
    if (tie && rank < room) {
      to[atomicAdd(&written, 1)] = {logits[i], i};
    }
    for (int w = 0; w < kSelectThreads / 32; ++w) {
      taken += warp_counts[w];
    }
    __syncthreads();
  }
}

__global__ void take_drawn_kernel(const DrawResult* results,
                                  const int32_t* rows,
                                  int32_t* tokens,
                                  int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count && rows[i] >= 0) {
    tokens[i] = max(results[rows[i]].token, 0);
  }
}

}  // namespace

// Launched the plain way: what it reads and writes is used before and after it by all.
void take_drawn(const Tensor& results, const Tensor& rows, const Tensor& tokens, Stream stream) {
  const int count = static_cast<int>(rows.shape[0]);
  if (count == 0) {
    return;
  }
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  take_drawn_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream.native)>>>(
      reinterpret_cast<const DrawResult*>(results.as<uint8_t>()),
      rows.as<int32_t>(),
      tokens.as<int32_t>(),
      count);
  CUDA_CHECK(cudaGetLastError());
}

int64_t draw_workspace_bytes(int64_t rows) {
  return rows * kParts * static_cast<int64_t>(sizeof(Part));
}

void draw_tokens(const Tensor& logits,
                 const Tensor& requests,
                 const Tensor& workspace,
                 const Tensor& results,
                 const Tensor& candidates,
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
  if (!candidates.empty()) {
    auto* to = reinterpret_cast<DrawCandidate*>(candidates.as<uint8_t>());
    launch_overlapped(
        candidates_kernel, dim3(static_cast<unsigned>(rows)), kSelectThreads, native, p, to);
  }
}

}  // namespace nibble::cuda
