// The small operations on CUDA: bf16 in memory, FP32 inside, one rounding where the CPU rounds. A
// row is computed by one block or warp in one order that depends on its width only, so results do
// not depend on the batch. Rows of aligned 16-byte pieces move eight elements at a time; any other
// width or stride takes the same arithmetic element by element.
#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backends/cuda/cuda_check.h"
#include "backends/cuda/device/activation.cuh"
#include "backends/cuda/device/bf16_vector.cuh"
#include "backends/cuda/device/prepare_head.cuh"
#include "backends/cuda/device/warp_sum.cuh"
#include "backends/cuda/draw_tokens.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/store_kv_e4m3.h"
#include "base/check.h"
#include "base/number_formats.h"
#include "ops/kernels.h"

namespace nibble {
namespace {

using namespace nibble::cuda;  // NOLINT(google-build-using-namespace): the folder's own helpers

using Bf16 = __nv_bfloat16;

constexpr int kNormThreads = 1024;  // at most: a row of 8192 is one piece a thread
constexpr int kPrepareThreads = 128;
constexpr int64_t kFillingBlocks = 1024;  // of those: so many keep a large GPU busy
constexpr int kThreads = 256;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream.native); }

Bf16* data_of(const Tensor& tensor) { return reinterpret_cast<Bf16*>(tensor.as<uint16_t>()); }

unsigned blocks_of(int64_t items, int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

// Whether every row starts at a multiple of 16 bytes; the last dimension is contiguous by contract.
bool aligned(const Tensor& tensor) {
  bool ok = reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0;
  for (int i = 0; i + 1 < tensor.shape.rank; ++i) {
    ok = ok && tensor.stride[i] * size_of(tensor.dtype) % 16 == 0;
  }
  return ok;
}

// Calls `launch` with std::true_type when the rows can be moved in pieces of eight.
template <typename Launch>
void choose_vector(bool vector, const Launch& launch) {
  if (vector) {
    launch(std::true_type{});
  } else {
    launch(std::false_type{});
  }
}

// ---- norms ----

// Weights [at, at + 8) of a norm, stored as bf16 or, where weight_f32 is not null, as f32.
template <bool kVector>
__device__ __forceinline__ void load_weight(
    const Bf16* weight, const float* weight_f32, int64_t at, int64_t width, float (&w)[8]) {
  if (weight_f32 != nullptr) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      w[j] = kVector || at + j < width ? weight_f32[at + j] : 0.0f;
    }
  } else {
    load8<kVector>(weight, at, width, w);
  }
}

template <bool kVector>
__device__ __forceinline__ void scale_piece(float (&x)[8],
                                            float scale,
                                            const Bf16* weight,
                                            const float* weight_f32,
                                            int64_t at,
                                            int64_t width) {
  float w[8];
  load_weight<kVector>(weight, weight_f32, at, width, w);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    x[j] = x[j] * scale * w[j];
  }
}

struct NormParams {
  const Bf16* x;
  Bf16* residual;  // null: a plain norm
  const Bf16* weight;
  const float* weight_f32;  // instead of `weight` when not null
  Bf16* out;
  int64_t x_stride, residual_stride, out_stride, width;
  float eps;
};

// One block a row. A thread keeps its first piece in registers, wider rows are read again (kWide:
// more than kNormThreads pieces). Short code on purpose: a block of a decode step runs it once,
// from a cold instruction cache. The weights, which no kernel writes, are asked for before the
// wait.
template <bool kVector, bool kWide>
__global__ void __launch_bounds__(kNormThreads) norm_kernel(const NormParams p) {
#if __CUDA_ARCH__ >= 900
  allow_next_kernel();
#endif
  __shared__ float partial[kNormThreads / 32];
  const auto row = static_cast<int64_t>(blockIdx.x);
  const Bf16* x_row = p.x + row * p.x_stride;
  Bf16* residual_row = p.residual + row * p.residual_stride;
  const Bf16* sum_row = p.residual != nullptr ? residual_row : x_row;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * 8;
  const int64_t step = static_cast<int64_t>(blockDim.x) * 8;
  float w[8] = {};
  if (first < p.width) {
    load_weight<kVector>(p.weight, p.weight_f32, first, p.width, w);
  }
#if __CUDA_ARCH__ >= 900
  wait_for_previous_kernel();
#endif
  float kept[8] = {};
  float sum = 0.0f;
  for (int64_t at = first; at < p.width; at += step) {
    float x[8];
    load8<kVector>(x_row, at, p.width, x);
    if (p.residual != nullptr) {
      float r[8];
      load8<kVector>(residual_row, at, p.width, r);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        x[j] = round_bf16(r[j] + x[j]);
      }
      store8<kVector>(residual_row, at, p.width, x);
    }
    sum += square_sum(x);
    if (!kWide || at == first) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        kept[j] = x[j];
      }
    }
    if (!kWide) {
      break;
    }
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) {
    partial[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  const unsigned warps = blockDim.x / 32;
  const unsigned lane = threadIdx.x % 32;
  sum = warp_sum(lane < warps ? partial[lane] : 0.0f);
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(p.width) + p.eps);
  for (int64_t at = first; at < p.width; at += step) {
    if (kWide && at != first) {
      load8<kVector>(sum_row, at, p.width, kept);
      load_weight<kVector>(p.weight, p.weight_f32, at, p.width, w);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      kept[j] = kept[j] * scale * w[j];
    }
    store8<kVector>(p.out + row * p.out_stride, at, p.width, kept);
    if (!kWide) {
      break;
    }
  }
}

void launch_norm(const Tensor& x,
                 const Tensor* residual,
                 const Tensor& weight,
                 float eps,
                 const Tensor& out,
                 Stream stream) {
  if (x.shape[0] == 0) {
    return;
  }
  const bool is_f32 = weight.dtype == DType::F32;
  NormParams p{};
  p.x = data_of(x);
  p.residual = residual != nullptr ? data_of(*residual) : nullptr;
  p.weight = is_f32 ? nullptr : data_of(weight);
  p.weight_f32 = is_f32 ? weight.as<float>() : nullptr;
  p.out = data_of(out);
  p.x_stride = x.stride[0];
  p.residual_stride = residual != nullptr ? residual->stride[0] : 0;
  p.out_stride = out.stride[0];
  p.width = x.shape[1];
  p.eps = eps;
  const bool vector = p.width % 8 == 0 && aligned(x) && aligned(out) && aligned(weight) &&
                      (residual == nullptr || aligned(*residual));
  const int64_t all = (p.width + 7) / 8;
  const auto pieces = static_cast<int>(std::min<int64_t>(all, kNormThreads));
  const auto threads = static_cast<unsigned>((pieces + 31) / 32 * 32);
  const dim3 grid(static_cast<unsigned>(x.shape[0]));
  choose_vector(vector, [&](auto kind) {
    constexpr bool kVector = decltype(kind)::value;
    if (all <= kNormThreads) {
      launch_overlapped(norm_kernel<kVector, false>, grid, threads, native(stream), p);
    } else {
      launch_overlapped(norm_kernel<kVector, true>, grid, threads, native(stream), p);
    }
  });
}

void rms_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, Stream stream) {
  launch_norm(x, nullptr, weight, eps, out, stream);
}

void add_rms_norm(const Tensor& x,
                  const Tensor& residual,
                  const Tensor& weight,
                  float eps,
                  const Tensor& out,
                  Stream stream) {
  launch_norm(x, &residual, weight, eps, out, stream);
}

struct HeadParams {
  Bf16* x;
  const Bf16* weight;
  const float* weight_f32;
  int64_t rows, heads, head_dim, token_stride, head_stride;
  float eps;
};

// One warp a head.
template <bool kVector>
__global__ void __launch_bounds__(kThreads) head_norm_kernel(const HeadParams p) {
  begin_overlapped();
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (row >= p.rows) {
    return;
  }
  Bf16* head = p.x + row / p.heads * p.token_stride + row % p.heads * p.head_stride;
  const int64_t first = static_cast<int64_t>(threadIdx.x % 32) * 8;
  float kept[8] = {};
  float sum = 0.0f;
  for (int64_t at = first; at < p.head_dim; at += 256) {
    float x[8];
    load8<kVector>(head, at, p.head_dim, x);
    sum += square_sum(x);
    if (at == first) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        kept[j] = x[j];
      }
    }
  }
  sum = warp_sum(sum);
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(p.head_dim) + p.eps);
  for (int64_t at = first; at < p.head_dim; at += 256) {
    if (at != first) {
      load8<kVector>(head, at, p.head_dim, kept);
    }
    scale_piece<kVector>(kept, scale, p.weight, p.weight_f32, at, p.head_dim);
    store8<kVector>(head, at, p.head_dim, kept);
  }
}

void head_rms_norm(const Tensor& x, const Tensor& weight, float eps, Stream stream) {
  const bool is_f32 = weight.dtype == DType::F32;
  const HeadParams p{.x = data_of(x),
                     .weight = is_f32 ? nullptr : data_of(weight),
                     .weight_f32 = is_f32 ? weight.as<float>() : nullptr,
                     .rows = x.shape[0] * x.shape[1],
                     .heads = x.shape[1],
                     .head_dim = x.shape[2],
                     .token_stride = x.stride[0],
                     .head_stride = x.stride[1],
                     .eps = eps};
  if (p.rows == 0) {
    return;
  }
  const bool vector = p.head_dim % 8 == 0 && aligned(x) && aligned(weight);
  choose_vector(vector, [&](auto kind) {
    launch_overlapped(head_norm_kernel<decltype(kind)::value>,
                      dim3(blocks_of(p.rows, kThreads / 32)),
                      kThreads,
                      native(stream),
                      p);
  });
}

// ---- rotation ----

struct RopeParams {
  Bf16* q;
  Bf16* k;
  const int32_t* positions;
  const float* cos_sin;
  int64_t q_heads, k_heads, half, pieces, table_stride;
  int64_t q_token_stride, q_head_stride, k_token_stride, k_head_stride;
};

// A thread rotates eight pairs of channels of one head; a row of blocks is one token.
template <bool kVector>
__global__ void __launch_bounds__(kThreads) rope_kernel(const RopeParams p) {
  begin_overlapped();
  const auto token = static_cast<int64_t>(blockIdx.x);
  const int64_t item = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  int64_t head = item / p.pieces;
  if (head >= p.q_heads + p.k_heads) {
    return;
  }
  const int64_t at = item % p.pieces * 8;
  Bf16* low = nullptr;
  if (head < p.q_heads) {
    low = p.q + token * p.q_token_stride + head * p.q_head_stride;
  } else {
    low = p.k + token * p.k_token_stride + (head - p.q_heads) * p.k_head_stride;
  }
  Bf16* high = low + p.half;
  const float* cosine = p.cos_sin + p.positions[token] * p.table_stride;
  float a[8];
  float b[8];
  load8<kVector>(low, at, p.half, a);
  load8<kVector>(high, at, p.half, b);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (kVector || at + j < p.half) {
      const float c = cosine[at + j];
      const float s = cosine[p.half + at + j];
      const float rotated = rotate_low(a[j], b[j], c, s);
      b[j] = rotate_high(a[j], b[j], c, s);
      a[j] = rotated;
    }
  }
  store8<kVector>(low, at, p.half, a);
  store8<kVector>(high, at, p.half, b);
}

void rope(const Tensor& q,
          const Tensor& k,
          const Tensor& positions,
          const Tensor& cos_sin,
          Stream stream) {
  const int64_t half = cos_sin.shape[1] / 2;
  const RopeParams p{.q = data_of(q),
                     .k = data_of(k),
                     .positions = positions.as<int32_t>(),
                     .cos_sin = cos_sin.as<float>(),
                     .q_heads = q.shape[1],
                     .k_heads = k.shape[1],
                     .half = half,
                     .pieces = (half + 7) / 8,
                     .table_stride = cos_sin.stride[0],
                     .q_token_stride = q.stride[0],
                     .q_head_stride = q.stride[1],
                     .k_token_stride = k.stride[0],
                     .k_head_stride = k.stride[1]};
  if (q.shape[0] == 0 || half == 0) {
    return;
  }
  const int64_t items = (p.q_heads + p.k_heads) * p.pieces;
  const dim3 grid(static_cast<unsigned>(q.shape[0]), blocks_of(items, kThreads));
  choose_vector(half % 8 == 0 && aligned(q) && aligned(k), [&](auto kind) {
    launch_overlapped(rope_kernel<decltype(kind)::value>, grid, kThreads, native(stream), p);
  });
}

// ---- norms, rotation and the cache in one ----

struct PrepareParams {
  const int32_t* positions;
  const int32_t* slots;
  const float* cos_sin;
  Bf16* from[3];  // q, k, v
  void* cache[2];
  const float* cache_scale[2];  // of e4m3; null: bf16
  const void* weight[2];        // of q and k; null: no norm
  int64_t token_stride[3], head_stride[3];
  int64_t page_stride[2], place_stride[2], cache_head_stride[2];
  int64_t table_stride;
  int heads[2];  // of q, and of k and v each
  int head_dim, half, page_size;
  float eps;
  bool weight_f32;
};

// kLanes lanes a head of one token, eight channels each; a block has all heads of a token or, where
// tokens are few, as many as fit at once (kOnce). The arithmetic of head_norm_kernel and
// rope_kernel, in registers.
template <int kLanes, bool kOnce>
__global__ void __launch_bounds__(kPrepareThreads) prepare_qkv_kernel(const PrepareParams p) {
#if __CUDA_ARCH__ >= 900
  allow_next_kernel();
#endif
  constexpr int kGroups = kPrepareThreads / kLanes;
  const auto lane = static_cast<int>(threadIdx.x % kLanes);
  const unsigned lanes = kLanes == 32 ? kAllLanes : 0xFFFFu << (threadIdx.x % 32 / kLanes * kLanes);
  const auto token = static_cast<int64_t>(blockIdx.x);
  const int heads = p.heads[0] + 2 * p.heads[1];
  int index = static_cast<int>(blockIdx.y) * kGroups + static_cast<int>(threadIdx.x) / kLanes;
  if (index >= heads) {
    return;
  }
  const int at = lane * 8;
  const bool mine = at < p.head_dim;
  const auto kind_of = [&](int i) {
    return i < p.heads[0] ? 0 : i < p.heads[0] + p.heads[1] ? 1 : 2;
  };
  const auto load_factor = [&](int kind, float(&factor)[8]) {
    const void* weight = kind == 0 ? p.weight[0] : p.weight[1];
    if (kind < 2 && weight != nullptr && mine) {
      load_head_weight(weight, p.weight_f32, at, factor);
    }
  };
  // What no kernel of the step writes is loaded before the wait: angles, weights, where to.
  const int64_t slot = p.slots[token];
  Rotation rotation;
  rotation.load(p.cos_sin + p.positions[token] * p.table_stride, p.half, lane);
  int loaded = kind_of(index);  // the kind of head that `factor` is for
  float factor[8] = {};
  load_factor(loaded, factor);
#if __CUDA_ARCH__ >= 900
  wait_for_previous_kernel();
#endif
#pragma unroll 1
  for (; index < heads; index += static_cast<int>(gridDim.y) * kGroups) {
    const int kind = kind_of(index);
    const int head = index - (kind == 0 ? 0 : p.heads[0] + (kind - 1) * p.heads[1]);
    if (!kOnce && kind != loaded) {
      loaded = kind;
      load_factor(kind, factor);
    }
    Bf16* row = (kind == 0   ? p.from[0]
                 : kind == 1 ? p.from[1]
                             : p.from[2]) +
                token * (kind == 0   ? p.token_stride[0]
                         : kind == 1 ? p.token_stride[1]
                                     : p.token_stride[2]) +
                head * (kind == 0   ? p.head_stride[0]
                        : kind == 1 ? p.head_stride[1]
                                    : p.head_stride[2]);
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (mine) {
      raw = *reinterpret_cast<const uint4*>(row + at);
    }
    if (kind < 2) {
      const bool norm = (kind == 0 ? p.weight[0] : p.weight[1]) != nullptr;
      raw = prepare_head<kLanes>(raw, norm, factor, p.head_dim, p.eps, rotation, lanes);
    }
    if (mine && kind == 0) {
      *reinterpret_cast<uint4*>(row + at) = raw;
    } else if (mine && slot >= 0) {
      const int64_t page = slot / p.page_size;
      const int64_t place = slot % p.page_size;
      const int64_t to = (kind == 1 ? page * p.page_stride[0] + place * p.place_stride[0] +
                                          head * p.cache_head_stride[0]
                                    : page * p.page_stride[1] + place * p.place_stride[1] +
                                          head * p.cache_head_stride[1]) +
                         at;
      void* cache = kind == 1 ? p.cache[0] : p.cache[1];
      const float* scale = kind == 1 ? p.cache_scale[0] : p.cache_scale[1];
      if (scale == nullptr) {
        *reinterpret_cast<uint4*>(static_cast<Bf16*>(cache) + to) = raw;
      } else {
        *reinterpret_cast<uint2*>(static_cast<uint8_t*>(cache) + to) = codes_of(raw, *scale);
      }
    }
    if (kOnce) {
      break;
    }
  }
}

// ---- element by element ----

struct PairParams {
  const Bf16* x;
  const Bf16* y;
  Bf16* out;
  int64_t x_stride, y_stride, out_stride, width;
};

template <bool kVector, bool kSilu>
__global__ void __launch_bounds__(kThreads) pair_kernel(const PairParams p) {
  begin_overlapped();
  const auto row = static_cast<int64_t>(blockIdx.x);
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * 8;
  if (at >= p.width) {
    return;
  }
  float x[8];
  float y[8];
  load8<kVector>(p.x + row * p.x_stride, at, p.width, x);
  load8<kVector>(p.y + row * p.y_stride, at, p.width, y);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    x[j] = kSilu ? cuda::silu_mul(x[j], y[j], 0.0f) : x[j] + y[j];
  }
  store8<kVector>(p.out + row * p.out_stride, at, p.width, x);
}

template <bool kSilu>
void launch_pairs(const PairParams& p, int64_t rows, bool all_aligned, Stream stream) {
  if (rows == 0 || p.width == 0) {
    return;
  }
  const dim3 grid(static_cast<unsigned>(rows), blocks_of(p.width, kThreads * 8));
  choose_vector(all_aligned && p.width % 8 == 0, [&](auto kind) {
    launch_overlapped(pair_kernel<decltype(kind)::value, kSilu>, grid, kThreads, native(stream), p);
  });
}

void silu_mul(const Tensor& x, const Tensor& out, Stream stream) {
  const int64_t width = out.shape[1];
  launch_pairs<true>({.x = data_of(x),
                      .y = data_of(x) + width,
                      .out = data_of(out),
                      .x_stride = x.stride[0],
                      .y_stride = x.stride[0],
                      .out_stride = out.stride[0],
                      .width = width},
                     out.shape[0],
                     aligned(x) && aligned(out),
                     stream);
}

void add(const Tensor& x, const Tensor& y, Stream stream) {
  launch_pairs<false>({.x = data_of(x),
                       .y = data_of(y),
                       .out = data_of(x),
                       .x_stride = x.stride[0],
                       .y_stride = y.stride[0],
                       .out_stride = x.stride[0],
                       .width = x.shape[1]},
                      x.shape[0],
                      aligned(x) && aligned(y),
                      stream);
}

// ---- copies ----

struct PickParams {
  const Bf16* from;
  const int32_t* rows;
  Bf16* to;
  int64_t from_stride, to_stride, width;
};

template <bool kVector>
__global__ void __launch_bounds__(kThreads) pick_rows_kernel(const PickParams p) {
  begin_overlapped();
  const auto row = static_cast<int64_t>(blockIdx.x);
  const int64_t at = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * 8;
  if (at >= p.width) {
    return;
  }
  float v[8];
  load8<kVector>(p.from + p.rows[row] * p.from_stride, at, p.width, v);
  store8<kVector>(p.to + row * p.to_stride, at, p.width, v);
}

// to[i, :] = from[rows[i], :]
void gather_rows(const Tensor& from, const Tensor& rows, const Tensor& to, Stream stream) {
  const PickParams p{.from = data_of(from),
                     .rows = rows.as<int32_t>(),
                     .to = data_of(to),
                     .from_stride = from.stride[0],
                     .to_stride = to.stride[0],
                     .width = to.shape[1]};
  if (to.shape[0] == 0) {
    return;
  }
  const dim3 grid(static_cast<unsigned>(to.shape[0]), blocks_of(p.width, kThreads * 8));
  choose_vector(p.width % 8 == 0 && aligned(from) && aligned(to), [&](auto kind) {
    launch_overlapped(pick_rows_kernel<decltype(kind)::value>, grid, kThreads, native(stream), p);
  });
}

void embedding(const Tensor& ids, const Tensor& table, const Tensor& out, Stream stream) {
  gather_rows(table, ids, out, stream);
}

struct StoreParams {
  const Bf16* from[2];
  Bf16* cache[2];
  const int32_t* slots;
  int64_t token_stride[2], head_stride[2];
  int64_t page_stride[2], place_stride[2], cache_head_stride[2];
  int64_t page_size, heads, head_dim, pieces;
};

// blockIdx.z: keys, then values. A slot below 0 stores nothing (a padding row).
template <bool kVector>
__global__ void __launch_bounds__(kThreads) store_kv_kernel(const StoreParams p) {
  begin_overlapped();
  const auto token = static_cast<int64_t>(blockIdx.x);
  const unsigned which = blockIdx.z;
  const int64_t item = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  const int64_t head = item / p.pieces;
  const int64_t slot = p.slots[token];
  if (head >= p.heads || slot < 0) {
    return;
  }
  const int64_t at = item % p.pieces * 8;
  const Bf16* from = which == 0 ? p.from[0] + token * p.token_stride[0] + head * p.head_stride[0]
                                : p.from[1] + token * p.token_stride[1] + head * p.head_stride[1];
  const int64_t page = slot / p.page_size;
  const int64_t place = slot % p.page_size;
  Bf16* to = which == 0 ? p.cache[0] + page * p.page_stride[0] + place * p.place_stride[0] +
                              head * p.cache_head_stride[0]
                        : p.cache[1] + page * p.page_stride[1] + place * p.place_stride[1] +
                              head * p.cache_head_stride[1];
  float v[8];
  load8<kVector>(from, at, p.head_dim, v);
  store8<kVector>(to, at, p.head_dim, v);
}

void store_kv(const Tensor& k,
              const Tensor& v,
              const Tensor& slots,
              const Tensor& k_cache,
              const Tensor& v_cache,
              Stream stream) {
  if (k.shape[0] == 0) {
    return;
  }
  StoreParams p{};
  const Tensor* from[] = {&k, &v};
  const Tensor* cache[] = {&k_cache, &v_cache};
  bool vector = k.shape[2] % 8 == 0;
  for (int i = 0; i < 2; ++i) {
    p.from[i] = data_of(*from[i]);
    p.cache[i] = data_of(*cache[i]);
    p.token_stride[i] = from[i]->stride[0];
    p.head_stride[i] = from[i]->stride[1];
    p.page_stride[i] = cache[i]->stride[0];
    p.place_stride[i] = cache[i]->stride[1];
    p.cache_head_stride[i] = cache[i]->stride[2];
    vector = vector && aligned(*from[i]) && aligned(*cache[i]);
  }
  p.slots = slots.as<int32_t>();
  p.page_size = k_cache.shape[1];
  p.heads = k.shape[1];
  p.head_dim = k.shape[2];
  p.pieces = (p.head_dim + 7) / 8;
  const dim3 grid(static_cast<unsigned>(k.shape[0]), blocks_of(p.heads * p.pieces, kThreads), 2);
  choose_vector(vector, [&](auto kind) {
    launch_overlapped(store_kv_kernel<decltype(kind)::value>, grid, kThreads, native(stream), p);
  });
}

void prepare_qkv(const QkvArgs& args, Stream stream) {
  const int64_t tokens = args.q.shape[0];
  const int64_t head_dim = args.q.shape[2];
  const int64_t half = args.cos_sin.shape[1] / 2;
  bool vector = head_dim % 8 == 0 && head_dim <= 256 && half % 8 == 0 && 2 * half <= head_dim;
  for (const Tensor* tensor : {&args.q, &args.k, &args.v, &args.k_cache, &args.v_cache}) {
    vector = vector && aligned(*tensor);
  }
  const bool norm = !args.q_weight.empty();
  const bool is_e4m3 = args.k_cache.dtype == DType::E4M3;
  vector = vector && (!norm || (aligned(args.q_weight) && aligned(args.k_weight)));
  if (!vector) {
    if (norm) {
      head_rms_norm(args.q, args.q_weight, args.eps, stream);
      head_rms_norm(args.k, args.k_weight, args.eps, stream);
    }
    rope(args.q, args.k, args.positions, args.cos_sin, stream);
    if (is_e4m3) {
      store_kv_e4m3(args.k,
                    args.v,
                    args.slots,
                    args.k_scale,
                    args.v_scale,
                    args.k_cache,
                    args.v_cache,
                    stream);
    } else {
      store_kv(args.k, args.v, args.slots, args.k_cache, args.v_cache, stream);
    }
    return;
  }
  PrepareParams p{};
  p.positions = args.positions.as<int32_t>();
  p.slots = args.slots.as<int32_t>();
  p.cos_sin = args.cos_sin.as<float>();
  const Tensor* from[] = {&args.q, &args.k, &args.v};
  for (int i = 0; i < 3; ++i) {
    p.from[i] = data_of(*from[i]);
    p.token_stride[i] = from[i]->stride[0];
    p.head_stride[i] = from[i]->stride[1];
  }
  const Tensor* cache[] = {&args.k_cache, &args.v_cache};
  for (int i = 0; i < 2; ++i) {
    p.cache[i] = cache[i]->data;
    p.page_stride[i] = cache[i]->stride[0];
    p.place_stride[i] = cache[i]->stride[1];
    p.cache_head_stride[i] = cache[i]->stride[2];
  }
  if (is_e4m3) {
    p.cache_scale[0] = args.k_scale.as<float>();
    p.cache_scale[1] = args.v_scale.as<float>();
  }
  p.weight[0] = args.q_weight.data;
  p.weight[1] = args.k_weight.data;
  p.weight_f32 = norm && args.q_weight.dtype == DType::F32;
  p.heads[0] = static_cast<int>(args.q.shape[1]);
  p.heads[1] = static_cast<int>(args.k.shape[1]);
  p.table_stride = args.cos_sin.stride[0];
  p.head_dim = static_cast<int>(head_dim);
  p.half = static_cast<int>(half);
  p.page_size = static_cast<int>(args.k_cache.shape[1]);
  p.eps = args.eps;
  const int heads = p.heads[0] + 2 * p.heads[1];
  if (tokens == 0 || heads == 0) {
    return;
  }
  const auto launch = [&](auto lanes) {
    constexpr int kLanes = decltype(lanes)::value;
    const auto most = static_cast<int64_t>(blocks_of(heads, kPrepareThreads / kLanes));
    const int64_t shares = std::clamp<int64_t>(kFillingBlocks / tokens, 1, most);
    const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(shares));
    const auto kernel =
        shares == most ? prepare_qkv_kernel<kLanes, true> : prepare_qkv_kernel<kLanes, false>;
    launch_overlapped(kernel, grid, kPrepareThreads, native(stream), p);
  };
  if (head_dim <= 128) {
    launch(std::integral_constant<int, 16>{});
  } else {
    launch(std::integral_constant<int, 32>{});
  }
}

}  // namespace

extern const SmallOps kCudaSmallOps;
const SmallOps kCudaSmallOps{
    .device = Device::Kind::Cuda,
    .isa = 80,
    .embedding = embedding,
    .rms_norm = rms_norm,
    .add_rms_norm = add_rms_norm,
    .head_rms_norm = head_rms_norm,
    .rope = rope,
    .silu_mul = silu_mul,
    .add = add,
    .store_kv = store_kv,
    .gather_rows = gather_rows,
    .store_kv_e4m3 = store_kv_e4m3,
    .prepare_qkv = prepare_qkv,
    .draw_tokens = draw_tokens,
    .draw_workspace_bytes = draw_workspace_bytes,
    .place_inputs = place_inputs,
};

}  // namespace nibble
