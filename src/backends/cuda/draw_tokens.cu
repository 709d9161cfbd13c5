// From logits to tokens on the device: the arithmetic of the host's sampler without filters, in two
// kernels. The vocabulary is cut into parts whose borders depend on its size only; a block finds
// the largest logit of its part and the sum of exponentials relative to it, in float64; one block a
// row joins the parts, neighbours first, and finds where the drawn share falls. So a row's token
// does not depend on the batch. Only the order of the sums differs from the host's. Few requests
// are parameters of the kernels, and results are written a second time in the host's pinned memory:
// a copy would be an operation of the stream that costs more than the kernel's own few bytes.
// (Requests read from pinned memory by every block took 65 us a step.)
#include <algorithm>

#include <cuda_runtime.h>

#include "backends/cuda/draw_tokens.h"
#include "backends/cuda/launch.cuh"
#include "base/check.h"

namespace nibble::cuda {
namespace {

constexpr int kParts = 64;
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kHeld = 8;  // logits a thread keeps between its two passes: vocabularies to 262144
constexpr int kFinishThreads = 256;
constexpr int kFinishWarps = kFinishThreads / 32;
constexpr int64_t kMostInParameters = 8;  // requests; more are copied
constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr uint32_t kNoIndex = 0xFFFFFFFFu;
constexpr int kNotHere = -2;  // a token of another warp's piece

struct Part {
  double sum;  // of exp((logit - top) * scale)
  float top;
  int32_t index;  // of top, the lowest; -1: nothing finite
  int32_t bad;    // a NaN was seen
  int32_t unused;
};

// The largest logit seen: larger logits have larger keys, 0 and -0 the same; 0: none above -inf.
struct Best {
  uint32_t key;
  uint32_t index;  // the lowest with that key, or kNoIndex
};

// Larger floats have larger keys.
__device__ __forceinline__ uint32_t key_of(float v) {
  const uint32_t bits = __float_as_uint(v);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float value_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

__device__ __forceinline__ Best best_of(float top, int32_t index) {
  return index >= 0 ? Best{key_of(top + 0.0f), static_cast<uint32_t>(index)} : Best{0, kNoIndex};
}

/// Of all lanes, in all lanes.
__device__ __forceinline__ Best best_of_warp(const Best& mine) {
  const uint32_t key = __reduce_max_sync(kAllLanes, mine.key);
  return {key, __reduce_min_sync(kAllLanes, mine.key == key ? mine.index : kNoIndex)};
}

__device__ __forceinline__ double sum_of_warp(double mine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    mine += __shfl_xor_sync(kAllLanes, mine, step);
  }
  return mine;
}

/// Of all lanes up to this one.
template <typename Number>
__device__ __forceinline__ Number running_sum(Number mine, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Number lower = __shfl_up_sync(kAllLanes, mine, step);
    mine += lane >= step ? lower : Number{0};
  }
  return mine;
}

struct Params {
  const float* logits;
  const DrawRequest* requests;  // nullptr: `few` has them
  Part* parts;                  // [rows, kParts]
  DrawResult* results;
  DrawResult* shown;  // of the host; nullptr: not wanted
  int64_t stride;     // of logits
  int vocab, part_size;
  DrawRequest few[kMostInParameters];
};

__device__ __forceinline__ const DrawRequest& request_of(const Params& p, int row) {
  return p.requests != nullptr ? p.requests[row] : p.few[row];
}

__device__ __forceinline__ double weight_of(float logit, double top, double scale) {
  return exp((static_cast<double>(logit) - top) * scale);
}

__global__ void __launch_bounds__(kThreads) draw_parts_kernel(const Params p) {
  __shared__ Best warp_best[kWarps];
  __shared__ double warp_sum[kWarps];
  const int row = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  begin_overlapped();
  const double scale = request_of(p, row).scale;
  const int begin = static_cast<int>(blockIdx.x) * p.part_size;
  const int end = min(begin + p.part_size, p.vocab);
  const float* logits = p.logits + row * p.stride;
  const int lane = thread % 32;
  float held[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {  // all loads before the first is used
    const int i = begin + thread + k * kThreads;
    held[k] = i < end ? logits[i] : -INFINITY;
  }
  float top = -INFINITY;
  int32_t index = -1;
  bool bad = false;
  const auto look = [&](float v, int i) {
    bad |= isnan(v);
    if (v > top) {
      top = v;
      index = i;
    }
  };
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    look(held[k], begin + thread + k * kThreads);
  }
  const int first_left = begin + thread + kHeld * kThreads;  // of larger vocabularies
  for (int i = first_left; i < end; i += kThreads) {
    look(logits[i], i);
  }
  const Best of_warp = best_of_warp(best_of(top, index));
  if (lane == 0) {
    warp_best[thread / 32] = of_warp;
  }
  const int any_bad = __syncthreads_or(bad ? 1 : 0);
  const Best best = best_of_warp(lane < kWarps ? warp_best[lane] : Best{0, kNoIndex});
  double sum = 0.0;
  if (best.key != 0) {
    const auto of_part = static_cast<double>(value_of(best.key));
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (begin + thread + k * kThreads < end) {
        sum += weight_of(held[k], of_part, scale);
      }
    }
    for (int i = first_left; i < end; i += kThreads) {
      sum += weight_of(logits[i], of_part, scale);
    }
  }
  sum = sum_of_warp(sum);
  if (lane == 0) {
    warp_sum[thread / 32] = sum;
  }
  __syncthreads();
  if (thread < 32) {
    sum = sum_of_warp(lane < kWarps ? warp_sum[lane] : 0.0);
    if (lane == 0) {
      const bool none = best.key == 0;
      p.parts[row * kParts + static_cast<int>(blockIdx.x)] = {
          sum,
          none ? -INFINITY : value_of(best.key),
          none ? -1 : static_cast<int32_t>(best.index),
          any_bad != 0 ? 1 : 0,
          0};
    }
  }
}

/// Where in [begin, end) the running sum of exp((logit - top) * scale) passes `target`; the last
/// finite token where it falls short by rounding. One warp.
__device__ int find_in_range(
    const float* logits, int begin, int end, double top, double scale, double target) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  double before = 0.0;
  int last = -1;
  for (int base = begin; base < end; base += 32) {
    const int i = base + lane;
    const float v = i < end ? logits[i] : -INFINITY;
    const double running =
        before + running_sum(v > -INFINITY ? weight_of(v, top, scale) : 0.0, lane);
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

/// The same for a whole block: each warp sums a piece, and the one whose piece has the token finds
/// it; kNotHere in the others.
__device__ int find_in_part(
    const float* logits, int begin, int end, double top, double scale, double target) {
  __shared__ double sums[kFinishWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int piece = (end - begin + kFinishThreads - 1) / kFinishThreads * 32;
  const int from = min(begin + warp * piece, end);
  const int to = min(from + piece, end);
  double sum = 0.0;
#pragma unroll 4
  for (int i = from + lane; i < to; i += 32) {
    const float v = logits[i];
    sum += v > -INFINITY ? weight_of(v, top, scale) : 0.0;
  }
  sum = sum_of_warp(sum);
  if (lane == 0) {
    sums[warp] = sum;
  }
  __syncthreads();
  int chosen = 0;
  double rest = 0.0;
  double before = 0.0;
  for (int i = 0; i < kFinishWarps; ++i) {
    if (sums[i] > 0.0) {
      chosen = i;  // the last with a share, when rounding makes the sum fall short
      rest = target - before;
      before += sums[i];
      if (target < before) {
        break;
      }
    }
  }
  return warp == chosen ? find_in_range(logits, from, to, top, scale, rest) : kNotHere;
}

__global__ void __launch_bounds__(kFinishThreads) draw_finish_kernel(const Params p) {
  const int row = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const DrawRequest request = request_of(p, row);  // as in draw_parts_kernel
  begin_overlapped();
  const bool draws = request.greedy == 0 && request.candidates == 0;
  if (!draws && threadIdx.x >= 32) {
    return;
  }
  // Every warp joins the parts for itself, two neighbours a lane.
  const Part low = p.parts[row * kParts + 2 * lane];
  const Part high = p.parts[row * kParts + 2 * lane + 1];
  const Best of_low = best_of(low.top, low.index);
  const Best of_high = best_of(high.top, high.index);
  const Best best = best_of_warp(of_high.key > of_low.key ? of_high : of_low);
  const bool bad = __any_sync(kAllLanes, low.bad != 0 || high.bad != 0);
  const float top_logit = best.key != 0 ? value_of(best.key) : -INFINITY;
  const auto top = static_cast<double>(top_logit);
  const bool finite = best.key != 0 && !bad && !isinf(top_logit);
  const double low_weight = low.index >= 0 ? low.sum * weight_of(low.top, top, request.scale) : 0.0;
  const double high_weight =
      high.index >= 0 ? high.sum * weight_of(high.top, top, request.scale) : 0.0;
  const double running = running_sum(low_weight + high_weight, lane);
  const double total = __shfl_sync(kAllLanes, running, 31);
  int token = finite ? static_cast<int>(best.index) : -1;
  float logit = finite ? top_logit : 0.0f;
  bool writes = threadIdx.x == 0;
  if (finite && draws) {
    const double target = request.unit * total;
    const double below = __shfl_up_sync(kAllLanes, running, 1);
    const double before = lane > 0 ? below : 0.0;
    const double middle = before + low_weight;
    const bool in_low = low_weight > 0.0 && target < middle;
    const bool in_high = high_weight > 0.0 && target < middle + high_weight;
    const unsigned passed = __ballot_sync(kAllLanes, in_low || in_high);
    const unsigned with_share = __ballot_sync(kAllLanes, low_weight > 0.0 || high_weight > 0.0);
    // The last with a share, when rounding makes the sum fall short.
    const int from = passed != 0 ? __ffs(static_cast<int>(passed)) - 1
                                 : 31 - __clz(static_cast<int>(with_share));
    const bool takes_low = passed != 0 ? in_low : high_weight <= 0.0;
    const int part = __shfl_sync(kAllLanes, takes_low ? 2 * lane : 2 * lane + 1, from);
    // Not below 0, where the two orders of summation differ.
    const double rest = max(target - (takes_low ? before : middle), 0.0);
    const int begin = part * p.part_size;
    const float* logits = p.logits + row * p.stride;
    token = find_in_part(logits,
                         begin,
                         min(begin + p.part_size, p.vocab),
                         top,
                         request.scale,
                         __shfl_sync(kAllLanes, rest, from));
    writes = token != kNotHere && lane == 0;
    logit = token >= 0 ? logits[token] : 0.0f;
  }
  if (writes) {
    DrawResult result{};
    result.token = token;
    result.logit = logit;
    result.log_total = top * request.scale + log(total);
    p.results[row] = result;
    if (p.shown != nullptr) {
      p.shown[row] = result;
    }
  }
}

// ---- the best of a row, for filters ----

constexpr int kSelectThreads = 1024;
constexpr int kBins = 2048;

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
  if (request_of(p, row).candidates == 0) {
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
        const int running = running_sum(counts[bin], lane);
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

}  // namespace

int64_t draw_workspace_bytes(int64_t rows) {
  return rows * static_cast<int64_t>(kParts * sizeof(Part) + sizeof(DrawRequest));
}

void draw_tokens(const Tensor& logits,
                 const Tensor& requests,
                 const Tensor& workspace,
                 const Tensor& results,
                 const Tensor& shown,
                 const Tensor& candidates,
                 Stream stream) {
  const int64_t rows = logits.shape[0];
  if (rows == 0) {
    return;
  }
  CHECK(workspace.size_bytes() >= draw_workspace_bytes(rows), "workspace too small to draw");
  Params p{};
  p.logits = logits.as<float>();
  p.parts = reinterpret_cast<Part*>(workspace.as<uint8_t>());
  p.results = reinterpret_cast<DrawResult*>(results.as<uint8_t>());
  p.shown = shown.empty() ? nullptr : reinterpret_cast<DrawResult*>(shown.as<uint8_t>());
  p.stride = logits.stride[0];
  p.vocab = static_cast<int>(logits.shape[1]);
  p.part_size = (p.vocab + kParts - 1) / kParts;
  auto* native = static_cast<cudaStream_t>(stream.native);
  const auto* asked = reinterpret_cast<const DrawRequest*>(requests.as<uint8_t>());
  if (rows <= kMostInParameters) {
    std::copy_n(asked, rows, p.few);
  } else {
    auto* copy = reinterpret_cast<DrawRequest*>(p.parts + rows * kParts);
    CUDA_CHECK(cudaMemcpyAsync(copy,
                               asked,
                               static_cast<size_t>(rows) * sizeof(DrawRequest),
                               cudaMemcpyHostToDevice,
                               native));
    p.requests = copy;
  }
  // A copy has ended before either kernel begins, so requests may be read before the wait.
  const OverlappedLaunch parts{.grid = dim3(kParts, static_cast<unsigned>(rows)),
                               .threads = kThreads,
                               .overlap = p.requests == nullptr};
  launch_overlapped(draw_parts_kernel, parts, native, p);
  launch_overlapped(
      draw_finish_kernel, dim3(static_cast<unsigned>(rows)), kFinishThreads, native, p);
  if (!candidates.empty()) {
    auto* to = reinterpret_cast<DrawCandidate*>(candidates.as<uint8_t>());
    launch_overlapped(
        candidates_kernel, dim3(static_cast<unsigned>(rows)), kSelectThreads, native, p, to);
  }
}

}  // namespace nibble::cuda
