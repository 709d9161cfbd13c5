#include "checkpoint/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"

namespace nibble::checkpoint {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json::object small_config() {
  return json::parse(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
    "hidden_size":128,"intermediate_size":256,"num_hidden_layers":2,"num_attention_heads":4,
    "num_key_value_heads":2,"vocab_size":512,"max_position_embeddings":2048,"rms_norm_eps":1e-5,
    "rope_theta":500000.0,"eos_token_id":2,"bos_token_id":1})")
      .as_object();
}

Result<ModelConfig> parse(const json::object& object, const json::value* generation = nullptr) {
  return parse_model_config(object, generation, "config.json");
}

std::string error_with(std::string_view key, json::value value) {
  json::object object = small_config();
  object[key] = std::move(value);
  const auto config = parse(object);
  return config ? "accepted" : config.error().text();
}

TEST(ModelConfig, ReadsTheOlderKeys) {
  json::object object = small_config();
  object["rope_scaling"] = json::parse(
      R"({"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
          "original_max_position_embeddings":256,"rope_type":"llama3"})");
  const auto config = parse(object);
  ASSERT_TRUE(config.has_value()) << config.error().text();
  EXPECT_EQ(config->architecture, "LlamaForCausalLM");
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_EQ(config->rope.type, RopeConfig::Type::Llama3);
  EXPECT_EQ(config->rope.theta, 500000.0);
  EXPECT_EQ(config->rope.factor, 8.0);
  EXPECT_EQ(config->rope.original_max_position, 256);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2));
  EXPECT_EQ(config->bos_token_id, 1);
  EXPECT_FALSE(config->tie_word_embeddings);
  EXPECT_EQ(config->moe.num_experts, 0);
}

TEST(ModelConfig, ReadsTheNewerKeysToTheSameMeaning) {
  json::object object = small_config();
  object.erase("rope_theta");
  object["rope_scaling"] = nullptr;
  object["rope_parameters"] = json::parse(
      R"({"rope_type":"yarn","rope_theta":1000000.0,"factor":4.0,"beta_fast":16,
          "original_max_position_embeddings":64,"partial_rotary_factor":0.5})");
  const auto config = parse(object);
  ASSERT_TRUE(config.has_value()) << config.error().text();
  EXPECT_EQ(config->rope.type, RopeConfig::Type::Yarn);
  EXPECT_EQ(config->rope.theta, 1e6);
  EXPECT_EQ(config->rope.beta_fast, 16.0);
  EXPECT_EQ(config->rope.partial_rotary_factor, 0.5);

  object["rope_parameters"] = nullptr;
  object["rope_scaling"] =
      json::parse(R"({"type":"yarn","factor":4.0,"original_max_position_embeddings":64})");
  EXPECT_EQ(parse(object)->rope.type, RopeConfig::Type::Yarn);
}

TEST(ModelConfig, TakesTheLanguageModelsKeysFromTextConfig) {
  json::object outer;
  outer["architectures"] = json::array{"Qwen3_5ForConditionalGeneration"};
  outer["tie_word_embeddings"] = true;
  json::object inner = small_config();
  inner.erase("architectures");
  inner["head_dim"] = 64;
  outer["text_config"] = inner;
  const auto config = parse(outer);
  ASSERT_TRUE(config.has_value()) << config.error().text();
  EXPECT_EQ(config->hidden_size, 128);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_TRUE(config->tie_word_embeddings);
}

TEST(ModelConfig, ReadsExpertsUnderTheirDifferentNames) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    json::object object = small_config();
    object[key] = 8;
    object["num_experts_per_tok"] = 2;
    object["moe_intermediate_size"] = 64;
    const auto config = parse(object);
    ASSERT_TRUE(config.has_value()) << config.error().text();
    EXPECT_EQ(config->moe.num_experts, 8);
    EXPECT_EQ(config->moe.moe_intermediate_size, 64);
    EXPECT_FALSE(config->moe.norm_topk_prob);
    object["num_experts_per_tok"] = 9;
    EXPECT_THAT(parse(object).error().text(), HasSubstr("config.json.num_experts_per_tok"));
  }
}

TEST(ModelConfig, EndTokensOfBothFilesCount) {
  const json::value generation = json::parse(R"({"eos_token_id":[2,7]})");
  EXPECT_THAT(parse(small_config(), &generation)->eos_token_ids, ElementsAre(2, 7));
  const json::value silent = json::parse(R"({"temperature":0.6})");
  EXPECT_THAT(parse(small_config(), &silent)->eos_token_ids, ElementsAre(2));
  const json::value other = json::parse(R"({"eos_token_id":9})");
  EXPECT_THAT(parse(small_config(), &other)->eos_token_ids, ElementsAre(2, 9));
  const json::value wrong = json::parse(R"({"eos_token_id":[2,512]})");
  EXPECT_THAT(parse(small_config(), &wrong).error().text(),
              HasSubstr("generation_config.json.eos_token_id: expected 0 to 511, found 512"));
}

TEST(ModelConfig, RefusesWrongValuesAndNamesTheKey) {
  EXPECT_EQ(error_with("hidden_size", 256), "accepted");
  EXPECT_THAT(error_with("hidden_size", "128"),
              HasSubstr("config.json.hidden_size: expected an integer, found a string"));
  EXPECT_THAT(error_with("hidden_size", -1), HasSubstr("config.json.hidden_size: expected 1 to"));
  EXPECT_THAT(error_with("hidden_size", 1e15), HasSubstr("config.json.hidden_size"));
  EXPECT_THAT(error_with("hidden_size", nullptr),
              HasSubstr("config.json.hidden_size: required but missing"));
  EXPECT_THAT(error_with("num_hidden_layers", 100000), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(error_with("num_key_value_heads", 3), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(error_with("hidden_size", 130), HasSubstr("config.json.head_dim: missing, and"));
  EXPECT_THAT(error_with("rms_norm_eps", 0), HasSubstr("rms_norm_eps: expected a positive"));
  EXPECT_THAT(error_with("architectures", nullptr), HasSubstr("config.json.architectures"));
  EXPECT_THAT(error_with("rope_scaling", json::parse(R"({"rope_type":"longrope"})")),
              HasSubstr("config.json.rope_scaling.rope_type: 'longrope' is not supported"));
  EXPECT_THAT(error_with("rope_scaling", json::parse(R"({"rope_type":"linear"})")),
              HasSubstr("config.json.rope_scaling.factor: required but missing"));
  EXPECT_THAT(error_with("rope_scaling", json::parse(R"({"rope_type":"yarn","factor":4,
                                         "attention_factor":{"__float__":"NaN"}})")),
              HasSubstr("rope_scaling.attention_factor: expected a finite number, found NaN"));
  EXPECT_THAT(error_with("intermediate_size", nullptr), HasSubstr("intermediate_size: missing"));
}

}  // namespace
}  // namespace nibble::checkpoint
