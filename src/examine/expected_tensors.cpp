#include "examine/expected_tensors.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace nibble::examine {

using checkpoint::Checkpoint;
using checkpoint::ModelConfig;

namespace {

constexpr std::array<std::string_view, 5> kLlamaShaped = {"LlamaForCausalLM",
                                                          "Qwen2ForCausalLM",
                                                          "Qwen3ForCausalLM",
                                                          "Qwen3MoeForCausalLM",
                                                          "MixtralForCausalLM"};

// More say nothing new, and a config may state millions of experts.
constexpr size_t kMaxErrors = 500;

class Lookup {
 public:
  bool full() const { return errors_.size() >= kMaxErrors; }
  explicit Lookup(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  void linear(const std::string& module, int64_t n, int64_t k, std::string_view from) {
    if (full()) {
      return;
    }
    auto info = checkpoint_.linear(module, n, k, from);
    if (info) {
      checkpoint::note_tensors(*info, read_);
    } else if (!is_reported(info.error())) {
      errors_.push_back(std::move(info).error());
    }
  }
  void vector(const std::string& name, int64_t size, std::string_view from) {
    tensor(name, {size}, from);
  }
  void tensor(const std::string& name, const Shape& shape, std::string_view from) {
    if (full()) {
      return;
    }
    read_.insert(name);
    if (auto fits = checkpoint_.require_readable_as(name, DType::BF16, shape, from); !fits) {
      errors_.push_back(std::move(fits).error());
    }
  }
  ExpectedTensors take() {
    // After another error more would be unread than is left over.
    if (errors_.empty()) {
      if (auto unread = checkpoint::unread_weights(checkpoint_, read_)) {
        errors_.push_back(*std::move(unread));
      }
    }
    return {std::move(errors_), std::move(read_)};
  }

 private:
  bool is_reported(const Error& error) const {
    const auto& problems = checkpoint_.problems();
    return std::any_of(problems.begin(), problems.end(), [&](const auto& problem) {
      return problem.error.where == error.where && problem.error.message == error.message;
    });
  }

  const Checkpoint& checkpoint_;
  std::vector<Error> errors_;
  checkpoint::TensorNames read_;
};

void mlp(Lookup& lookup,
         const std::string& prefix,
         int64_t hidden,
         int64_t inner,
         std::string_view size_key) {
  const std::string up_from = std::string(size_key) + " x hidden_size";
  const std::string down_from = "hidden_size x " + std::string(size_key);
  lookup.linear(prefix + "gate_proj", inner, hidden, up_from);
  lookup.linear(prefix + "up_proj", inner, hidden, up_from);
  lookup.linear(prefix + "down_proj", hidden, inner, down_from);
}

void experts(Lookup& lookup, const std::string& layer, const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.moe.moe_intermediate_size;
  const bool mixtral = config.architecture == "MixtralForCausalLM";
  const std::string block = layer + (mixtral ? "block_sparse_moe." : "mlp.");
  lookup.linear(block + "gate", config.moe.num_experts, hidden, "num_experts x hidden_size");
  for (int64_t expert = 0; expert < config.moe.num_experts && !lookup.full(); ++expert) {
    const std::string prefix = block + "experts." + std::to_string(expert) + ".";
    if (!mixtral) {
      mlp(lookup, prefix, hidden, inner, "moe_intermediate_size");
      continue;
    }
    lookup.linear(prefix + "w1", inner, hidden, "intermediate_size x hidden_size");
    lookup.linear(prefix + "w3", inner, hidden, "intermediate_size x hidden_size");
    lookup.linear(prefix + "w2", hidden, inner, "hidden_size x intermediate_size");
  }
}

void attention(Lookup& lookup, const std::string& layer, const ModelConfig& config) {
  const std::string prefix = layer + "self_attn.";
  const int64_t q = config.num_attention_heads * config.head_dim;
  const int64_t kv = config.num_key_value_heads * config.head_dim;
  const std::string_view kv_from = "num_key_value_heads * head_dim x hidden_size";
  lookup.linear(
      prefix + "q_proj", q, config.hidden_size, "num_attention_heads * head_dim x hidden_size");
  lookup.linear(prefix + "k_proj", kv, config.hidden_size, kv_from);
  lookup.linear(prefix + "v_proj", kv, config.hidden_size, kv_from);
  lookup.linear(
      prefix + "o_proj", config.hidden_size, q, "hidden_size x num_attention_heads * head_dim");
  if (config.architecture.starts_with("Qwen3")) {
    lookup.vector(prefix + "q_norm.weight", config.head_dim, "head_dim");
    lookup.vector(prefix + "k_norm.weight", config.head_dim, "head_dim");
  }
  if (config.architecture == "Qwen2ForCausalLM" || config.attention_bias) {
    lookup.vector(prefix + "q_proj.bias", q, "num_attention_heads * head_dim");
    lookup.vector(prefix + "k_proj.bias", kv, "num_key_value_heads * head_dim");
    lookup.vector(prefix + "v_proj.bias", kv, "num_key_value_heads * head_dim");
  }
}

}  // namespace

ExpectedTensors expected_tensors(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  if (std::find(kLlamaShaped.begin(), kLlamaShaped.end(), config.architecture) ==
      kLlamaShaped.end()) {
    return {};
  }
  Lookup lookup(checkpoint);
  lookup.tensor("model.embed_tokens.weight",
                {config.vocab_size, config.hidden_size},
                "vocab_size x hidden_size");
  for (int64_t index = 0; index < config.num_hidden_layers && !lookup.full(); ++index) {
    const std::string layer = "model.layers." + std::to_string(index) + ".";
    lookup.vector(layer + "input_layernorm.weight", config.hidden_size, "hidden_size");
    attention(lookup, layer, config);
    lookup.vector(layer + "post_attention_layernorm.weight", config.hidden_size, "hidden_size");
    if (config.moe.is_sparse(index)) {
      experts(lookup, layer, config);
    } else {
      mlp(lookup,
          layer + "mlp.",
          config.hidden_size,
          config.intermediate_size,
          "intermediate_size");
    }
  }
  lookup.vector("model.norm.weight", config.hidden_size, "hidden_size");
  if (!config.tie_word_embeddings || checkpoint.stores_linear("lm_head")) {
    lookup.linear("lm_head",
                  config.vocab_size,
                  config.hidden_size,
                  config.tie_word_embeddings
                      ? "vocab_size x hidden_size, tie_word_embeddings true"
                      : "vocab_size x hidden_size, tie_word_embeddings false");
  }
  return lookup.take();
}

}  // namespace nibble::examine
