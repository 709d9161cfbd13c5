#include "model/dense_decoder.h"

#include <string>
#include <variant>
#include <vector>

#include "model/dense_layer.h"
#include "model/fused_step.h"

namespace nibble::model {

namespace {

class DenseDecoder final : public Model {
 public:
  DenseDecoder(Builder& builder, const DenseTraits& traits)
      : hidden_size_(builder.config().hidden_size) {
    const checkpoint::ModelConfig& c = builder.config();
    const ModelSlice& slice = builder.slice();
    const int64_t end = slice.layer_end < 0 ? c.num_hidden_layers : slice.layer_end;
    if (slice.embedding) {
      embedding_ = builder.embedding("model.embed_tokens");
    }
    for (int64_t l = slice.layer_begin; l < end; ++l) {
      const std::string prefix = "model.layers." + std::to_string(l);
      DenseLayer layer;
      layer.input_norm = builder.norm(prefix + ".input_layernorm", hidden_size_, "hidden_size");
      layer.attention = builder.attention(prefix + ".self_attn",
                                          static_cast<size_t>(l - slice.layer_begin),
                                          traits.qk_norm,
                                          traits.qkv_bias,
                                          traits.o_bias);
      layer.post_attention_norm =
          builder.norm(prefix + ".post_attention_layernorm", hidden_size_, "hidden_size");
      if (traits.moe && c.moe.is_sparse(l)) {
        layer.ffn = builder.moe(prefix, *traits.moe);
      } else {
        layer.ffn = builder.swiglu(prefix + ".mlp", c.intermediate_size, traits.mlp_bias);
      }
      layers_.push_back(layer);
    }
    if (slice.head) {
      final_norm_ = builder.norm("model.norm", hidden_size_, "hidden_size");
      head_ = builder.head("lm_head", "model.embed_tokens");
    }
    if (builder.finish()) {  // else nobody sees the model, and layers may lack their kernels
      step_ = FusedStep(layers_, builder.options());
      facts_.step_kernel = step_.kernel();
      facts_.step_refusal = step_.why_not();
    }
  }

  void forward(Context& context, const BatchView& batch, const Tensor& hidden) const override {
    const Arena::Scope scope(context.arena);
    const Tensor residual =
        context.arena.take(DType::BF16, Shape{batch.tokens.shape[0], hidden_size_});
    embed(context, batch.tokens, residual);
    run_layers(context, batch, residual);
    finish(context, residual, batch.rows, hidden);
  }

  void embed(Context& context, const Tensor& tokens, const Tensor& residual) const override {
    embedding_(context, tokens, residual);
  }

  void run_layers(Context& context, const BatchView& batch, const Tensor& residual) const override {
    if (step_.takes(context, batch)) {
      step_.run(context, batch, residual);
      return;
    }
    const Arena::Scope scope(context.arena);
    const Tensor x = context.arena.take(DType::BF16, residual.shape);
    for (size_t l = 0; l < layers_.size(); ++l) {
      const DenseLayer& layer = layers_[l];
      layer.attention.qkv.announce(context, x.shape[0]);
      if (l == 0) {
        layer.input_norm(context, residual, x);
      } else {
        layer.input_norm.add(context, x, residual, x);
      }
      layer.attention(context, batch, x, x);
      if (const auto* mlp = std::get_if<SwiGluMlp>(&layer.ffn)) {
        mlp->gate_up.announce(context, x.shape[0]);
      }
      layer.post_attention_norm.add(context, x, residual, x);
      std::visit([&](const auto& ffn) { ffn(context, x, x); }, layer.ffn);
    }
    if (context.runs() && !layers_.empty()) {
      context.ops.add(residual, x, context.stream);
    }
  }

  void finish(Context& context,
              const Tensor& residual,
              const Tensor& rows,
              const Tensor& hidden) const override {
    if (context.runs() && rows.shape[0] > 0) {
      head_.announce(context, rows.shape[0]);
      if (rows.shape[0] == residual.shape[0]) {  // all of them, as they are
        final_norm_(context, residual, hidden);
      } else {
        context.ops.gather_rows(residual, rows, hidden, context.stream);
        final_norm_(context, hidden, hidden);
      }
    }
  }

  void logits(Context& context, const Tensor& hidden, const Tensor& logits) const override {
    head_(context, hidden, logits);
  }

  int64_t hidden_size() const override { return hidden_size_; }
  int64_t step_state_bytes() const override { return step_.state_bytes(); }
  void prepare_decode_step(const Tensor& state,
                           std::span<const KvLayer> kv,
                           Stream stream) const override {
    step_.prepare(state, kv, stream);
  }

 private:
  int64_t hidden_size_;
  Embedding embedding_;
  std::vector<DenseLayer> layers_;
  FusedStep step_;  // of layers_
  Norm final_norm_;
  Linear head_;
};

}  // namespace

std::unique_ptr<Model> make_dense_decoder(Builder& builder, const DenseTraits& traits) {
  return std::make_unique<DenseDecoder>(builder, traits);
}

}  // namespace nibble::model
