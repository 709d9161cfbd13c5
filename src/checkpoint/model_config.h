// config.json -> ModelConfig: one meaning for both generations of keys (rope_theta/rope_scaling or
// rope_parameters, torch_dtype or dtype). Values are checked here; shapes against the stored
// tensors in checkpoint.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/error.h"

namespace nibble::checkpoint {

struct RopeConfig {
  enum class Type : uint8_t { Default, Linear, Llama3, Yarn };
  Type type = Type::Default;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  int64_t original_max_position = 0;
  double beta_fast = 32.0;  // yarn
  double beta_slow = 1.0;   // yarn
  bool truncate = true;     // yarn
  std::optional<double> attention_factor;
  double mscale = 0;
  double mscale_all_dim = 0;
  double partial_rotary_factor = 1.0;
  bool operator==(const RopeConfig&) const = default;
};

struct MoeConfig {
  int64_t num_experts = 0;  // 0: dense
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  int64_t shared_expert_intermediate_size = 0;
  bool norm_topk_prob = false;
  int64_t decoder_sparse_step = 1;
  std::vector<int64_t> mlp_only_layers;
  // Whether a layer has experts, else it is dense.
  bool is_sparse(int64_t layer) const;
  bool operator==(const MoeConfig&) const = default;
};

struct ModelConfig {
  std::string architecture;  // architectures[0]
  std::string model_type;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  std::string hidden_act = "silu";
  RopeConfig rope;
  MoeConfig moe;
  std::vector<int64_t> eos_token_ids;  // of config.json and generation_config.json
  std::optional<int64_t> bos_token_id;
  boost::json::object raw;  // the whole file, for keys only one architecture knows
};

// `where` names the file in errors. generation_config may be null.
Result<ModelConfig> parse_model_config(const boost::json::value& config,
                                       const boost::json::value* generation_config,
                                       const std::string& where);

}  // namespace nibble::checkpoint
