#include "model/layers.h"

#include "model/observer.h"
#include "ops/announce.h"

namespace nibble::model {

void Linear::operator()(Context& context, const Tensor& x, const Tensor& y) const {
  const Arena::Scope scope(context.arena);
  GemmArgs args;
  args.x = x;
  args.y = y;
  const auto bytes = static_cast<int64_t>(gemm_->workspace_bytes(desc_, x.shape[0]));
  if (bytes > 0) {
    args.workspace = context.arena.take(DType::U8, {bytes});
  }
  if (!context.runs()) {
    return;
  }
  if (context.observer != nullptr) {
    context.observer->linear(store_->linear(id_), x);
  }
  args.packed = store_->slots(id_);
  args.bias = store_->bias(id_);
  gemm_->run(desc_, args, context.stream);
}

void Linear::announce(Context& context, int64_t rows) const {
  constexpr int64_t kFewRows = 16;
  if (rows <= kFewRows && context.runs()) {
    announce_weights(store_->slots(id_), context.stream);
  }
}

void Norm::operator()(Context& context, const Tensor& x, const Tensor& out) const {
  if (context.runs()) {
    context.ops.rms_norm(x, store_->tensor(id_), eps_, out, context.stream);
  }
}

void Norm::add(Context& context, const Tensor& x, const Tensor& residual, const Tensor& out) const {
  if (context.runs()) {
    context.ops.add_rms_norm(x, residual, store_->tensor(id_), eps_, out, context.stream);
  }
}

void Norm::per_head(Context& context, const Tensor& x) const {
  if (context.runs()) {
    context.ops.head_rms_norm(x, store_->tensor(id_), eps_, context.stream);
  }
}

void Embedding::operator()(Context& context, const Tensor& ids, const Tensor& out) const {
  if (context.runs()) {
    context.ops.embedding(ids, store_->tensor(id_), out, context.stream);
  }
}

namespace {

// Columns [begin, begin + heads * head_dim) of a [tokens, width] matrix as [tokens, heads,
// head_dim].
Tensor heads_view(const Tensor& matrix, int64_t begin, int64_t heads, int64_t head_dim) {
  Tensor view = matrix;
  view.shape = Shape{matrix.shape[0], heads, head_dim};
  view.stride = Shape{matrix.stride[0], head_dim, 1};
  if (matrix.data != nullptr) {
    view.data = static_cast<std::byte*>(matrix.data) + begin * size_of(matrix.dtype);
  }
  return view;
}

}  // namespace

QkvArgs Attention::qkv_args(const BatchView& batch,
                            const Tensor& q,
                            const Tensor& k,
                            const Tensor& v) const {
  const KvLayer& cache = batch.kv[layer];
  QkvArgs args;
  args.q = q;
  args.k = k;
  args.v = v;
  if (qk_norm) {
    args.q_weight = q_norm.weight();
    args.k_weight = k_norm.weight();
    args.eps = q_norm.eps();
  }
  args.positions = batch.positions;
  args.cos_sin = store->tensor(rope_table);
  args.slots = batch.kv_slots;
  args.k_cache = cache.k;
  args.v_cache = cache.v;
  if (desc.kv == DType::E4M3) {
    args.k_scale = store->tensor(k_scale);
    args.v_scale = store->tensor(v_scale);
  }
  return args;
}

void Attention::prepare(Context& context, const QkvArgs& args, const Tensor& x) const {
  if (context.ops.prepare_qkv != nullptr && context.observer == nullptr) {
    context.ops.prepare_qkv(args, context.stream);
    return;
  }
  if (qk_norm) {
    q_norm.per_head(context, args.q);
    k_norm.per_head(context, args.k);
  }
  context.ops.rope(args.q, args.k, args.positions, args.cos_sin, context.stream);
  if (context.observer != nullptr) {
    context.observer->attention(qkv.spec(), desc, args.q, args.k, x);
  }
  if (desc.kv == DType::E4M3) {
    context.ops.store_kv_e4m3(args.k,
                              args.v,
                              args.slots,
                              args.k_scale,
                              args.v_scale,
                              args.k_cache,
                              args.v_cache,
                              context.stream);
  } else {
    context.ops.store_kv(args.k, args.v, args.slots, args.k_cache, args.v_cache, context.stream);
  }
}

void Attention::operator()(Context& context,
                           const BatchView& batch,
                           const Tensor& x,
                           const Tensor& out) const {
  const Arena::Scope scope(context.arena);
  const int64_t tokens = x.shape[0];
  AttentionDesc call = desc;
  call.phase = batch.decode ? AttentionPhase::Decode : AttentionPhase::Prefill;
  const AttentionBackend* backend = batch.decode ? decode : prefill;
  const Tensor projected = context.arena.take(DType::BF16, {tokens, qkv.n()});
  const Tensor attended = context.arena.take(DType::BF16, {tokens, desc.heads, desc.head_dim});
  qkv(context, x, projected);
  o.announce(context, tokens);
  const Tensor q = heads_view(projected, 0, desc.heads, desc.head_dim);
  const Tensor k = heads_view(projected, desc.heads * desc.head_dim, desc.kv_heads, desc.head_dim);
  const Tensor v = heads_view(
      projected, (desc.heads + desc.kv_heads) * desc.head_dim, desc.kv_heads, desc.head_dim);
  {
    const Arena::Scope workspace_scope(context.arena);
    AttentionArgs args;
    const auto bytes =
        static_cast<int64_t>(backend->workspace_bytes(call, tokens, batch.kv_lens.shape[0]));
    if (bytes > 0) {
      args.workspace = context.arena.take(DType::U8, {bytes});
    }
    if (context.runs()) {
      const QkvArgs rows = qkv_args(batch, q, k, v);
      if (backend->prepares != nullptr && context.observer == nullptr &&
          backend->prepares(call, rows)) {
        args.prepare = &rows;
      } else {
        prepare(context, rows, x);
      }
      args.q = q;
      args.k_cache = rows.k_cache;
      args.v_cache = rows.v_cache;
      args.k_scale = rows.k_scale;
      args.v_scale = rows.v_scale;
      args.page_table = batch.page_table;
      args.q_begin = batch.q_begin;
      args.kv_lens = batch.kv_lens;
      args.out = attended;
      if (counters) {
        args.counters = store->tensor(*counters);
      }
      backend->run(call, args, context.stream);
    }
  }
  o(context, attended.reshaped({tokens, desc.heads * desc.head_dim}), out);
}

void SwiGluMlp::operator()(Context& context, const Tensor& x, const Tensor& out) const {
  const Arena::Scope scope(context.arena);
  const int64_t tokens = x.shape[0];
  const Tensor gated = context.arena.take(DType::BF16, {tokens, gate_up.n() / 2});
  if (fused) {
    gate_up(context, x, gated);
    down(context, gated, out);
    return;
  }
  const Tensor both = context.arena.take(DType::BF16, {tokens, gate_up.n()});
  gate_up(context, x, both);
  down.announce(context, tokens);
  if (context.runs()) {
    context.ops.silu_mul(both, gated, context.stream);
  }
  down(context, gated, out);
}

}  // namespace nibble::model
