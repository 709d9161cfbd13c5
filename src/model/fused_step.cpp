#include "model/fused_step.h"

#include <utility>
#include <variant>

#include "base/check.h"

namespace nibble::model {

namespace {

void set_product(DecodeStepDesc& desc, DecodeProduct index, const Linear& linear) {
  desc.products[index] = linear.desc();
  desc.product_kernels[index] = linear.kernel();
}

DecodeStepDesc desc_of(const DenseLayer& layer,
                       const SwiGluMlp& mlp,
                       Device device,
                       int64_t count) {
  const Attention& attention = layer.attention;
  DecodeStepDesc desc;
  desc.device = device;
  desc.isa = attention.desc.isa;
  desc.layers = count;
  set_product(desc, kDecodeQkv, attention.qkv);
  set_product(desc, kDecodeO, attention.o);
  set_product(desc, kDecodeGateUp, mlp.gate_up);
  set_product(desc, kDecodeDown, mlp.down);
  desc.attention = attention.desc;
  desc.attention.phase = AttentionPhase::Decode;
  desc.attention_kernel = attention.decode->name;
  desc.norm = layer.input_norm.weight().dtype;
  desc.head_norms = attention.qk_norm;
  desc.rotary_dim = attention.store->tensor(attention.rope_table).shape[1];
  return desc;
}

}  // namespace

FusedStep::FusedStep(std::span<const DenseLayer> layers, const ModelOptions& options)
    : layers_(layers) {
  if (options.fused_step == false) {
    why_not_ = "not asked for";
    return;
  }
  if (!options.slice.whole() || layers.empty()) {
    why_not_ = "a part of a model";
    return;
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto* mlp = std::get_if<SwiGluMlp>(&layers[l].ffn);
    if (mlp == nullptr) {
      why_not_ = "layer " + std::to_string(l) + " is a mixture of experts";
      return;
    }
    const DecodeStepDesc desc =
        desc_of(layers[l], *mlp, options.device, static_cast<int64_t>(layers.size()));
    if (l > 0 && desc != desc_) {
      why_not_ = "layer " + std::to_string(l) + " is unlike those before it";
      return;
    }
    desc_ = desc;
  }
  const Result<const DecodeStepBackend*> backend = select_decode_step(desc_);
  if (!backend) {
    why_not_ = backend.error().message;
    return;
  }
  if (!options.fused_step.has_value() && !(*backend)->pays(desc_)) {
    why_not_ = std::string((*backend)->name) + " takes it but is expected to be slower";
    return;
  }
  backend_ = *backend;
}

void FusedStep::prepare(const Tensor& state, std::span<const KvLayer> kv, Stream stream) const {
  CHECK(available() && kv.size() == layers_.size(),
        "a decode step that is not there, or its cache");
  std::vector<DecodeStepLayer> all;
  all.reserve(layers_.size());
  for (size_t l = 0; l < layers_.size(); ++l) {
    const DenseLayer& from = layers_[l];
    const auto& mlp = std::get<SwiGluMlp>(from.ffn);
    DecodeStepLayer layer;
    layer.packed = {from.attention.qkv.packed(),
                    from.attention.o.packed(),
                    mlp.gate_up.packed(),
                    mlp.down.packed()};
    layer.qkv_bias = from.attention.qkv.bias();
    layer.input_norm = from.input_norm.weight();
    layer.post_norm = from.post_attention_norm.weight();
    if (from.attention.qk_norm) {
      layer.q_norm = from.attention.q_norm.weight();
      layer.k_norm = from.attention.k_norm.weight();
    }
    layer.k_cache = kv[from.attention.layer].k;
    layer.v_cache = kv[from.attention.layer].v;
    all.push_back(layer);
  }
  backend_->prepare(desc_, all, state, stream);
}

bool FusedStep::takes(const Context& context, const BatchView& batch) const {
  return available() && context.runs() && context.observer == nullptr && batch.decode &&
         batch.tokens.shape[0] == 1 && !batch.step_state.empty();
}

void FusedStep::run(Context& context, const BatchView& batch, const Tensor& residual) const {
  const Attention& attention = layers_[0].attention;
  DecodeStepArgs args;
  args.state = batch.step_state;
  args.residual = residual;
  args.position = batch.positions;
  args.slot = batch.kv_slots;
  args.page_table = batch.page_table;
  args.kv_len = batch.kv_lens;
  args.cos_sin = attention.store->tensor(attention.rope_table);
  args.norm_eps = layers_[0].input_norm.eps();
  backend_->run(desc_, args, context.stream);
}

}  // namespace nibble::model
