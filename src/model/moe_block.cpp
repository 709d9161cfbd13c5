#include "model/moe_block.h"

#include "model/observer.h"

namespace nibble::model {

void Experts::operator()(Context& context,
                         const Tensor& x,
                         const Tensor& ids,
                         const Tensor& weights,
                         const Tensor& out) const {
  const Arena::Scope scope(context.arena);
  ExpertsArgs args;
  const auto bytes = static_cast<int64_t>(backend_->workspace_bytes(desc_, x.shape[0]));
  if (bytes > 0) {
    args.workspace = context.arena.take(DType::U8, {bytes});
  }
  if (!context.runs()) {
    return;
  }
  if (context.observer != nullptr) {
    context.observer->experts(store_->experts(id_), x, ids);
  }
  args.x = x;
  args.ids = ids;
  args.weights = weights;
  args.y = out;
  args.packed = store_->slots(id_);
  backend_->run(desc_, args, context.stream);
}

void MoeBlock::operator()(Context& context, const Tensor& x, const Tensor& out) const {
  const Arena::Scope scope(context.arena);
  const int64_t tokens = x.shape[0];
  const Tensor logits = context.arena.take(DType::F32, {tokens, router_desc.experts});
  const Tensor ids = context.arena.take(DType::I32, {tokens, router_desc.topk});
  const Tensor weights = context.arena.take(DType::F32, {tokens, router_desc.topk});
  gate(context, x, logits);
  if (context.runs()) {
    router->route(router_desc, logits, Tensor{}, ids, weights, context.stream);
  }
  if (!shared) {
    experts(context, x, ids, weights, out);
    return;
  }
  const Tensor for_all = context.arena.take(DType::BF16, x.shape);
  (*shared)(context, x, for_all);
  experts(context, x, ids, weights, out);
  if (context.runs()) {
    context.ops.add(out, for_all, context.stream);
  }
}

}  // namespace nibble::model
