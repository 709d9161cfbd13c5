#include "checkpoint/model_config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/json.h"
#include "checkpoint/model_sizes.h"

namespace nibble::checkpoint {

namespace json = boost::json;

namespace {

// Far above every published model; keeps products of two sizes inside 63 bits.
constexpr int64_t kMaxSize = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxPositions = int64_t{1} << 30;

// The language model's keys: multimodal wrappers nest them in text_config and leave some beside it.
class Keys {
 public:
  static Result<Keys> from(const JsonObject& root) {
    return Keys(TRY(root.find_object("text_config")).value_or(root), root);
  }
  const JsonObject& object_with(std::string_view key) const {
    return inner_.has(key) || !outer_.has(key) ? inner_ : outer_;
  }
  bool has(std::string_view key) const { return inner_.has(key) || outer_.has(key); }
  std::string path_of(std::string_view key) const { return object_with(key).path_of(key); }

 private:
  Keys(JsonObject inner, JsonObject outer) : inner_(std::move(inner)), outer_(std::move(outer)) {}
  JsonObject inner_;
  JsonObject outer_;
};

Result<int64_t> in_range(int64_t value, int64_t low, int64_t high, const std::string& where) {
  if (value < low || value > high) {
    return invalid("expected " + std::to_string(low) + " to " + std::to_string(high) + ", found " +
                       std::to_string(value),
                   where);
  }
  return value;
}

Result<int64_t> get_size(const Keys& keys, std::string_view key, int64_t high = kMaxSize) {
  const JsonObject& object = keys.object_with(key);
  return in_range(TRY(object.get_int(key)), 1, high, object.path_of(key));
}

Result<int64_t> find_size(const Keys& keys,
                          std::string_view key,
                          int64_t fallback,
                          int64_t low = 1,
                          int64_t high = kMaxSize) {
  const JsonObject& object = keys.object_with(key);
  const auto value = TRY(object.find_int(key));
  if (!value) {
    return fallback;
  }
  return in_range(*value, low, high, object.path_of(key));
}

Result<bool> find_flag(const Keys& keys, std::string_view key, bool fallback) {
  return TRY(keys.object_with(key).find_bool(key)).value_or(fallback);
}

// The first of several spellings that is present.
std::string_view first_key(const Keys& keys, std::initializer_list<std::string_view> spellings) {
  for (std::string_view key : spellings) {
    if (keys.has(key)) {
      return key;
    }
  }
  return *spellings.begin();
}

Result<double> positive(double value, const std::string& where) {
  if (!(value > 0) || !std::isfinite(value)) {
    return invalid("expected a positive number, found " + format_number(value), where);
  }
  return value;
}

Result<double> find_positive(const JsonObject& object, std::string_view key, double fallback) {
  const auto value = TRY(object.find_double(key));
  if (!value) {
    return fallback;
  }
  return positive(*value, object.path_of(key));
}

Result<std::optional<double>> find_finite(const JsonObject& object, std::string_view key) {
  const auto value = TRY(object.find_double(key));
  if (value && !std::isfinite(*value)) {
    return invalid("expected a finite number, found " + format_number(*value), object.path_of(key));
  }
  return value;
}

Result<RopeConfig::Type> rope_type(const JsonObject& scaling) {
  // "rope_type" is the newer spelling; both may be present and equal.
  const std::string_view key = scaling.has("rope_type") ? "rope_type" : "type";
  const std::string name = TRY(scaling.find_string(key)).value_or("default");
  if (name == "default" || name == "mrope") {  // three equal position streams for text: plain rope
    return RopeConfig::Type::Default;
  }
  if (name == "linear") {
    return RopeConfig::Type::Linear;
  }
  if (name == "llama3") {
    return RopeConfig::Type::Llama3;
  }
  if (name == "yarn") {
    return RopeConfig::Type::Yarn;
  }
  return unsupported("'" + name + "' is not supported; default, linear, llama3 and yarn are",
                     scaling.path_of(key));
}

Result<RopeConfig> parse_rope(const Keys& keys, int64_t max_position_embeddings) {
  RopeConfig rope;
  const JsonObject& theta_object = keys.object_with("rope_theta");
  rope.theta = TRY(find_positive(theta_object, "rope_theta", rope.theta));
  const JsonObject& partial_object = keys.object_with("partial_rotary_factor");
  rope.partial_rotary_factor = TRY(find_positive(partial_object, "partial_rotary_factor", 1.0));

  const std::string_view key = first_key(keys, {"rope_scaling", "rope_parameters"});
  const auto found = TRY(keys.object_with(key).find_object(key));
  if (found) {
    const JsonObject& scaling = *found;
    rope.type = TRY(rope_type(scaling));
    rope.theta = TRY(find_positive(scaling, "rope_theta", rope.theta));
    rope.partial_rotary_factor =
        TRY(find_positive(scaling, "partial_rotary_factor", rope.partial_rotary_factor));
    if (rope.type != RopeConfig::Type::Default) {
      rope.factor = TRY(positive(TRY(scaling.get_double("factor")), scaling.path_of("factor")));
    }
    rope.low_freq_factor = TRY(find_positive(scaling, "low_freq_factor", rope.low_freq_factor));
    rope.high_freq_factor = TRY(find_positive(scaling, "high_freq_factor", rope.high_freq_factor));
    rope.original_max_position =
        TRY(scaling.find_int("original_max_position_embeddings")).value_or(0);
    rope.beta_fast = TRY(find_positive(scaling, "beta_fast", rope.beta_fast));
    rope.beta_slow = TRY(find_positive(scaling, "beta_slow", rope.beta_slow));
    rope.truncate = TRY(scaling.find_bool("truncate")).value_or(true);
    rope.attention_factor = TRY(find_finite(scaling, "attention_factor"));
    rope.mscale = TRY(find_finite(scaling, "mscale")).value_or(0.0);
    rope.mscale_all_dim = TRY(find_finite(scaling, "mscale_all_dim")).value_or(0.0);
    if (rope.type == RopeConfig::Type::Llama3 && rope.low_freq_factor == rope.high_freq_factor) {
      return invalid("must differ from low_freq_factor", scaling.path_of("high_freq_factor"));
    }
    if (rope.original_max_position < 0 || rope.original_max_position > kMaxPositions) {
      return invalid("is out of range", scaling.path_of("original_max_position_embeddings"));
    }
  }
  if (rope.partial_rotary_factor > 1.0) {
    return invalid("expected at most 1, found " + format_number(rope.partial_rotary_factor),
                   keys.path_of("partial_rotary_factor"));
  }
  if (rope.original_max_position == 0) {
    rope.original_max_position = max_position_embeddings;
  }
  return rope;
}

Result<MoeConfig> parse_moe(const Keys& keys, const ModelConfig& config) {
  MoeConfig moe;
  const std::string_view experts_key =
      first_key(keys, {"num_experts", "num_local_experts", "n_routed_experts"});
  moe.num_experts = TRY(find_size(keys, experts_key, 0, 0));
  if (moe.num_experts == 0) {
    return moe;
  }
  moe.num_experts_per_tok = TRY(get_size(keys, "num_experts_per_tok"));
  if (moe.num_experts_per_tok > moe.num_experts) {
    return invalid(
        "is larger than " + std::string(experts_key) + " (" + std::to_string(moe.num_experts) + ")",
        keys.path_of("num_experts_per_tok"));
  }
  // Mixtral has one size for its experts and calls it intermediate_size.
  moe.moe_intermediate_size =
      TRY(find_size(keys, "moe_intermediate_size", config.intermediate_size));
  moe.shared_expert_intermediate_size =
      TRY(find_size(keys, "shared_expert_intermediate_size", 0, 0));
  moe.norm_topk_prob = TRY(find_flag(keys, "norm_topk_prob", config.model_type == "mixtral"));
  moe.decoder_sparse_step = TRY(find_size(keys, "decoder_sparse_step", 1));
  moe.mlp_only_layers = TRY(keys.object_with("mlp_only_layers").find_int_list("mlp_only_layers"))
                            .value_or(std::vector<int64_t>{});
  return moe;
}

// All that either file names: which of them a fine-tune forgot is not known, and a model that never
// emits an id is not hurt by it.
Result<std::vector<int64_t>> parse_eos(const Keys& keys,
                                       const json::value* generation_config,
                                       int64_t vocab_size) {
  std::vector<int64_t> ids;
  const auto add = [&](const JsonObject& object) -> Result<void> {
    const auto own = TRY(object.find_int_list("eos_token_id"));
    for (const int64_t id : own.value_or(std::vector<int64_t>{})) {
      TRY(in_range(id, 0, vocab_size - 1, object.path_of("eos_token_id")));
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) {
        ids.push_back(id);
      }
    }
    return {};
  };
  TRY(add(keys.object_with("eos_token_id")));
  if (generation_config != nullptr) {
    TRY(add(TRY(JsonObject::from(*generation_config, "generation_config.json"))));
  }
  return ids;
}

Result<void> parse_attention(const Keys& keys, ModelConfig& config) {
  config.num_attention_heads = TRY(get_size(keys, "num_attention_heads", 65536));
  config.num_key_value_heads =
      TRY(find_size(keys, "num_key_value_heads", config.num_attention_heads, 1, 65536));
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    return invalid("num_attention_heads (" + std::to_string(config.num_attention_heads) +
                       ") is not a multiple of it (" + std::to_string(config.num_key_value_heads) +
                       ")",
                   keys.path_of("num_key_value_heads"));
  }
  const std::string_view dim_key = first_key(keys, {"head_dim", "attention_head_dim"});
  config.head_dim = TRY(find_size(keys, dim_key, 0, 1, 65536));
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_attention_heads != 0) {
      return invalid("missing, and hidden_size (" + std::to_string(config.hidden_size) +
                         ") is not a multiple of num_attention_heads (" +
                         std::to_string(config.num_attention_heads) + ")",
                     keys.path_of("head_dim"));
    }
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  return {};
}

}  // namespace

bool MoeConfig::is_sparse(int64_t layer) const {
  return num_experts > 0 && (layer + 1) % decoder_sparse_step == 0 &&
         std::find(mlp_only_layers.begin(), mlp_only_layers.end(), layer) == mlp_only_layers.end();
}

Result<ModelConfig> parse_model_sizes(const json::value& config_json, const std::string& where) {
  const JsonObject root = TRY(JsonObject::from(config_json, where));
  const Keys keys = TRY(Keys::from(root));
  ModelConfig config;
  config.raw = root.raw();
  const auto architectures = TRY(root.find_string_list("architectures"));
  if (!architectures || architectures->empty()) {
    return invalid("missing; expected the name of the model class", root.path_of("architectures"));
  }
  config.architecture = architectures->front();
  config.model_type =
      TRY(keys.object_with("model_type").find_string("model_type")).value_or(std::string());

  config.hidden_size = TRY(get_size(keys, "hidden_size"));
  config.num_hidden_layers = TRY(get_size(keys, "num_hidden_layers", kMaxLayers));
  config.vocab_size = TRY(get_size(keys, "vocab_size"));
  config.intermediate_size = TRY(find_size(keys, "intermediate_size", 0, 0));
  TRY(parse_attention(keys, config));
  config.tie_word_embeddings = TRY(find_flag(keys, "tie_word_embeddings", false));
  config.attention_bias = TRY(find_flag(keys, "attention_bias", false));
  config.mlp_bias = TRY(find_flag(keys, "mlp_bias", false));
  config.moe = TRY(parse_moe(keys, config));
  if (config.moe.num_experts == 0 && config.intermediate_size == 0) {
    return invalid("missing", keys.path_of("intermediate_size"));
  }
  return config;
}

Result<ModelConfig> parse_model_config(const json::value& config_json,
                                       const json::value* generation_config,
                                       const std::string& where) {
  ModelConfig config = TRY(parse_model_sizes(config_json, where));
  const Keys keys = TRY(Keys::from(TRY(JsonObject::from(config_json, where))));
  config.max_position_embeddings =
      TRY(find_size(keys, "max_position_embeddings", 2048, 1, kMaxPositions));
  const std::string_view eps_key =
      first_key(keys, {"rms_norm_eps", "layer_norm_epsilon", "norm_eps"});
  config.rms_norm_eps = TRY(find_positive(keys.object_with(eps_key), eps_key, config.rms_norm_eps));
  const std::string_view act_key = first_key(keys, {"hidden_act", "mlp_hidden_act"});
  config.hidden_act = TRY(keys.object_with(act_key).find_string(act_key)).value_or("silu");
  config.rope = TRY(parse_rope(keys, config.max_position_embeddings));
  config.eos_token_ids = TRY(parse_eos(keys, generation_config, config.vocab_size));
  config.bos_token_id = TRY(keys.object_with("bos_token_id").find_int("bos_token_id"));
  return config;
}

}  // namespace nibble::checkpoint
