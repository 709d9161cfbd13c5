// The small operations on the CPU: FP32 inside, one rounding to bf16, rows over threads. A row is
// computed by one thread in one order, so results depend on neither the batch nor the thread count.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "backends/cpu/gemm_shared.h"
#include "backends/cpu/small_rows.h"
#include "backends/cpu/weighted_sum.h"
#include "base/check.h"
#include "base/number_formats.h"
#include "ops/kernels.h"

namespace nibble {

namespace {

using namespace nibble::cpu;  // NOLINT(google-build-using-namespace): the folder's own helpers

// Rows below this count of elements are not worth waking a worker for.
constexpr int64_t kMinElementsPerThread = 8192;

int64_t row_grain(int64_t width) {
  return std::max<int64_t>(1, kMinElementsPerThread / std::max<int64_t>(1, width));
}

uint16_t* row_of(const Tensor& tensor, int64_t row) {
  return tensor.as<uint16_t>() + row * tensor.stride[0];
}

// ---- scalar rows ----

void norm_row(const uint16_t* x,
              const uint16_t* weight_bf16,
              const float* weight_f32,
              float eps,
              int64_t width,
              uint16_t* out) {
  float sum = 0.0f;
  for (int64_t i = 0; i < width; ++i) {
    const float value = bf16_to_float(x[i]);
    sum += value * value;
  }
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
  for (int64_t i = 0; i < width; ++i) {
    const float weight = weight_f32 != nullptr ? weight_f32[i] : bf16_to_float(weight_bf16[i]);
    out[i] = float_to_bf16(bf16_to_float(x[i]) * scale * weight);
  }
}

void add_row(uint16_t* x, const uint16_t* y, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    x[i] = float_to_bf16(bf16_to_float(x[i]) + bf16_to_float(y[i]));
  }
}

void rotate_row(uint16_t* head, const float* cosine, const float* sine, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float low = bf16_to_float(head[i]);
    const float high = bf16_to_float(head[i + half]);
    head[i] = float_to_bf16(low * cosine[i] - high * sine[i]);
    head[i + half] = float_to_bf16(high * cosine[i] + low * sine[i]);
  }
}

void silu_mul_row(const uint16_t* gate, const uint16_t* up, int64_t width, uint16_t* out) {
  for (int64_t i = 0; i < width; ++i) {
    const float g = bf16_to_float(gate[i]);
    out[i] = float_to_bf16(g / (1.0f + std::exp(-g)) * bf16_to_float(up[i]));
  }
}

constexpr SmallOpsRows kScalarRows{norm_row, add_row, rotate_row, silu_mul_row};

// Stateless: which rows a table uses is part of its functions' types.
using RowsOf = const SmallOpsRows& (*)();
const SmallOpsRows& scalar_rows() { return kScalarRows; }
const SmallOpsRows& avx2_rows() { return *small_ops_avx2(); }
const SmallOpsRows& avx512_rows() { return *small_ops_avx512(); }

template <RowsOf rows>
void norm(const uint16_t* x, const Tensor& weight, float eps, int64_t width, uint16_t* out) {
  const bool is_f32 = weight.dtype == DType::F32;
  rows().norm(x,
              is_f32 ? nullptr : weight.as<uint16_t>(),
              is_f32 ? weight.as<float>() : nullptr,
              eps,
              width,
              out);
}

// ---- the table ----

void embedding(const Tensor& ids, const Tensor& table, const Tensor& out, Stream stream) {
  const int64_t width = table.shape[1];
  const int32_t* id = ids.as<int32_t>();
  pool_of(stream).parallel_for(
      out.shape[0], row_grain(width), [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
          DCHECK(id[t] >= 0 && id[t] < table.shape[0], "token id out of range: ", id[t]);
          std::memcpy(row_of(out, t), row_of(table, id[t]), static_cast<size_t>(width) * 2);
        }
      });
}

template <RowsOf rows>
void rms_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out, Stream stream) {
  const int64_t width = x.shape[1];
  pool_of(stream).parallel_for(x.shape[0], row_grain(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      norm<rows>(row_of(x, row), weight, eps, width, row_of(out, row));
    }
  });
}

template <RowsOf rows>
void add_rms_norm(const Tensor& x,
                  const Tensor& residual,
                  const Tensor& weight,
                  float eps,
                  const Tensor& out,
                  Stream stream) {
  const int64_t width = x.shape[1];
  pool_of(stream).parallel_for(x.shape[0], row_grain(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const uint16_t* from = row_of(x, row);
      uint16_t* sum = row_of(residual, row);
      rows().add(sum, from, width);
      norm<rows>(sum, weight, eps, width, row_of(out, row));
    }
  });
}

template <RowsOf rows>
void head_rms_norm(const Tensor& x, const Tensor& weight, float eps, Stream stream) {
  const int64_t heads = x.shape[1];
  const int64_t head_dim = x.shape[2];
  pool_of(stream).parallel_for(
      x.shape[0], row_grain(heads * head_dim), [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
          for (int64_t head = 0; head < heads; ++head) {
            uint16_t* row = row_of(x, t) + head * x.stride[1];
            norm<rows>(row, weight, eps, head_dim, row);
          }
        }
      });
}

template <RowsOf rows>
void rope(const Tensor& q,
          const Tensor& k,
          const Tensor& positions,
          const Tensor& cos_sin,
          Stream stream) {
  const int64_t half = cos_sin.shape[1] / 2;
  const int32_t* position = positions.as<int32_t>();
  const int64_t width = (q.shape[1] + k.shape[1]) * q.shape[2];
  pool_of(stream).parallel_for(q.shape[0], row_grain(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      DCHECK(position[t] >= 0 && position[t] < cos_sin.shape[0],
             "position beyond the rope table: ",
             position[t]);
      const float* cosine = cos_sin.as<float>() + position[t] * cos_sin.stride[0];
      for (const Tensor* tensor : {&q, &k}) {
        for (int64_t head = 0; head < tensor->shape[1]; ++head) {
          rows().rotate(row_of(*tensor, t) + head * tensor->stride[1], cosine, cosine + half, half);
        }
      }
    }
  });
}

template <RowsOf rows>
void silu_mul(const Tensor& x, const Tensor& out, Stream stream) {
  const int64_t width = out.shape[1];
  pool_of(stream).parallel_for(
      out.shape[0], row_grain(width), [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
          const uint16_t* gate = row_of(x, t);
          rows().silu_mul(gate, gate + width, width, row_of(out, t));
        }
      });
}

template <RowsOf rows>
void add(const Tensor& x, const Tensor& y, Stream stream) {
  const int64_t width = x.shape[1];
  pool_of(stream).parallel_for(x.shape[0], row_grain(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      rows().add(row_of(x, row), row_of(y, row), width);
    }
  });
}

// Calls store(is_k, values, place) for each head of each token of k and of v: head_dim bf16 and
// where they go in its cache.
template <typename T, typename Store>
void for_kv_heads(const Tensor& k,
                  const Tensor& v,
                  const Tensor& slots,
                  const Tensor& k_cache,
                  const Tensor& v_cache,
                  Stream stream,
                  const Store& store) {
  const int64_t page_size = k_cache.shape[1];
  const int64_t kv_heads = k.shape[1];
  const int32_t* slot = slots.as<int32_t>();
  pool_of(stream).parallel_for(
      k.shape[0], row_grain(kv_heads * k.shape[2]), [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
          DCHECK(slot[t] >= 0 && slot[t] < k_cache.shape[0] * page_size,
                 "kv slot out of range: ",
                 slot[t]);
          for (const bool is_k : {true, false}) {
            const Tensor& from = is_k ? k : v;
            const Tensor& cache = is_k ? k_cache : v_cache;
            T* place = static_cast<T*>(cache.data) + slot[t] / page_size * cache.stride[0] +
                       slot[t] % page_size * cache.stride[1];
            for (int64_t head = 0; head < kv_heads; ++head) {
              store(is_k, row_of(from, t) + head * from.stride[1], place + head * cache.stride[2]);
            }
          }
        }
      });
}

void store_kv(const Tensor& k,
              const Tensor& v,
              const Tensor& slots,
              const Tensor& k_cache,
              const Tensor& v_cache,
              Stream stream) {
  const auto bytes = static_cast<size_t>(k.shape[2]) * 2;
  for_kv_heads<uint16_t>(
      k, v, slots, k_cache, v_cache, stream, [&](bool, const uint16_t* values, uint16_t* place) {
        std::memcpy(place, values, bytes);
      });
}

void store_kv_e4m3(const Tensor& k,
                   const Tensor& v,
                   const Tensor& slots,
                   const Tensor& k_scale,
                   const Tensor& v_scale,
                   const Tensor& k_cache,
                   const Tensor& v_cache,
                   Stream stream) {
  const int64_t head_dim = k.shape[2];
  for_kv_heads<uint8_t>(k,
                        v,
                        slots,
                        k_cache,
                        v_cache,
                        stream,
                        [&](bool is_k, const uint16_t* values, uint8_t* place) {
                          const float scale = *(is_k ? k_scale : v_scale).as<float>();
                          for (int64_t i = 0; i < head_dim; ++i) {
                            place[i] = float_to_e4m3(bf16_to_float(values[i]) / scale);
                          }
                        });
}

void gather_rows(const Tensor& x, const Tensor& rows, const Tensor& out, Stream /*stream*/) {
  const int32_t* row = rows.as<int32_t>();
  for (int64_t i = 0; i < out.shape[0]; ++i) {
    DCHECK(row[i] >= 0 && row[i] < x.shape[0], "row out of range: ", row[i]);
    std::memcpy(row_of(out, i), row_of(x, row[i]), static_cast<size_t>(x.shape[1]) * 2);
  }
}

}  // namespace

namespace cpu {

const SmallOpsRows& small_rows(int isa) {
  if (isa >= static_cast<int>(CpuIsa::Avx512)) {
    return avx512_rows();
  }
  return isa >= static_cast<int>(CpuIsa::Avx2) ? avx2_rows() : scalar_rows();
}

void weighted_sum_scalar(const float* weights,
                         const int32_t* places,
                         int64_t count,
                         const float* rows,
                         int64_t stride,
                         int64_t begin,
                         int64_t end,
                         uint16_t* out) {
  for (int64_t i = begin; i < end; ++i) {
    float sum = 0.0f;
    for (int64_t j = 0; j < count; ++j) {
      sum += weights[j] * rows[places[j] * stride + i];
    }
    out[i] = float_to_bf16(sum);
  }
}

void relu2_row(const uint16_t* x, int64_t width, uint16_t* out) {
  for (int64_t i = 0; i < width; ++i) {
    const float value = std::max(bf16_to_float(x[i]), 0.0f);
    out[i] = float_to_bf16(value * value);
  }
}

}  // namespace cpu

namespace {

template <RowsOf rows>
constexpr SmallOps table(CpuIsa isa) {
  return {
      .device = Device::Kind::Cpu,
      .isa = static_cast<int>(isa),
      .embedding = embedding,
      .rms_norm = rms_norm<rows>,
      .add_rms_norm = add_rms_norm<rows>,
      .head_rms_norm = head_rms_norm<rows>,
      .rope = rope<rows>,
      .silu_mul = silu_mul<rows>,
      .add = add<rows>,
      .store_kv = store_kv,
      .gather_rows = gather_rows,
      .store_kv_e4m3 = store_kv_e4m3,
  };
}

}  // namespace

extern const SmallOps kCpuSmallOpsAvx512;
extern const SmallOps kCpuSmallOpsAvx2;
extern const SmallOps kCpuSmallOpsScalar;
const SmallOps kCpuSmallOpsAvx512 = table<avx512_rows>(CpuIsa::Avx512);
const SmallOps kCpuSmallOpsAvx2 = table<avx2_rows>(CpuIsa::Avx2);
const SmallOps kCpuSmallOpsScalar = table<scalar_rows>(CpuIsa::Scalar);

}  // namespace nibble
