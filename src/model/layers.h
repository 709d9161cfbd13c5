// The building blocks of the architectures: each holds parameter ids and resolved kernels, and runs
// with the tensors it is given. Built by Builder (model/builder.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "model/model.h"
#include "model/parameter_store.h"
#include "ops/attention.h"
#include "ops/gemm.h"
#include "tensor/tensor.h"

namespace nibble::model {

// y[m, n] = x[m, k] * W[n, k]^T (+ bias). W may be several checkpoint matrices stacked along n.
class Linear {
 public:
  Linear() = default;
  Linear(const ParameterStore& store, ParameterStore::Id id, GemmDesc desc, const GemmBackend* gemm)
      : store_(&store), id_(id), desc_(desc), gemm_(gemm) {}

  void operator()(Context& context, const Tensor& x, const Tensor& y) const;
  // To be called before the small operations ahead of a product of few rows, whose time is reading
  // weights: threads that have nothing to do meanwhile begin to fetch them.
  void announce(Context& context, int64_t rows) const;
  const LinearSpec& spec() const { return store_->linear(id_); }
  int64_t n() const { return desc_.n; }
  int64_t k() const { return desc_.k; }
  Epilogue epilogue() const { return desc_.epilogue; }
  const GemmDesc& desc() const { return desc_; }
  std::string_view kernel() const { return gemm_->name; }
  std::span<const Tensor> packed() const { return store_->slots(id_); }
  Tensor bias() const { return store_->bias(id_); }  // empty where there is none

 private:
  const ParameterStore* store_ = nullptr;
  ParameterStore::Id id_ = 0;
  GemmDesc desc_;
  const GemmBackend* gemm_ = nullptr;
};

// A weight vector of an RMS norm with its epsilon.
class Norm {
 public:
  Norm() = default;
  Norm(const ParameterStore& store, ParameterStore::Id id, float eps)
      : store_(&store), id_(id), eps_(eps) {}

  // x, out: [rows, width] bf16.
  void operator()(Context& context, const Tensor& x, const Tensor& out) const;
  // residual += x, then out = norm(residual).
  void add(Context& context, const Tensor& x, const Tensor& residual, const Tensor& out) const;
  Tensor weight() const { return store_->tensor(id_); }
  float eps() const { return eps_; }
  // In place over the last dimension of x: [tokens, heads, head_dim] bf16.
  void per_head(Context& context, const Tensor& x) const;

 private:
  const ParameterStore* store_ = nullptr;
  ParameterStore::Id id_ = 0;
  float eps_ = 0;
};

class Embedding {
 public:
  Embedding() = default;
  Embedding(const ParameterStore& store, ParameterStore::Id id) : store_(&store), id_(id) {}
  // ids: [tokens] i32; out: [tokens, hidden] bf16.
  void operator()(Context& context, const Tensor& ids, const Tensor& out) const;

 private:
  const ParameterStore* store_ = nullptr;
  ParameterStore::Id id_ = 0;
};

// Grouped-query self-attention with rotary positions over the paged cache of one layer.
struct Attention {
  Linear qkv;
  Linear o;
  Norm q_norm, k_norm;  // used when qk_norm
  bool qk_norm = false;
  AttentionDesc desc;  // of prefill; decode differs in its phase
  const AttentionBackend* prefill = nullptr;
  const AttentionBackend* decode = nullptr;
  const ParameterStore* store = nullptr;
  ParameterStore::Id rope_table = 0;
  ParameterStore::Id k_scale = 0;  // of an e4m3 cache
  ParameterStore::Id v_scale = 0;
  std::optional<ParameterStore::Id> counters;  // of both kernels, shared by all layers
  size_t layer = 0;

  // x, out: [tokens, hidden] bf16; out may alias x.
  void operator()(Context& context,
                  const BatchView& batch,
                  const Tensor& x,
                  const Tensor& out) const;

 private:
  QkvArgs qkv_args(const BatchView& batch, const Tensor& q, const Tensor& k, const Tensor& v) const;
  // Norms and rotation of q and k, keys and values into the cache. x: what was projected.
  void prepare(Context& context, const QkvArgs& args, const Tensor& x) const;
};

// down(silu(gate(x)) * up(x)).
struct SwiGluMlp {
  Linear gate_up;
  bool fused = false;  // gate_up gives the gated rows itself
  Linear down;
  void operator()(Context& context, const Tensor& x, const Tensor& out) const;
};

}  // namespace nibble::model
