#include "checkpoint/quant_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::checkpoint {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kNested =
    R"({"producer":{"name":"modelopt","version":"0.29.0"},"quantization":{"quant_algo":"NVFP4",
        "kv_cache_quant_algo":"FP8","group_size":16,"exclude_modules":["lm_head"]}})";
constexpr const char* kFlat =
    R"({"quant_method":"modelopt","quant_algo":"NVFP4","config_groups":{"group_0":{
        "input_activations":{"dynamic":false,"num_bits":4,"type":"float","group_size":16},
        "weights":{"dynamic":false,"num_bits":4,"type":"float","group_size":16},
        "targets":["Linear"]}},"ignore":["lm_head"],
        "kv_cache_scheme":{"dynamic":false,"num_bits":8,"type":"float"}})";
const std::string kProj = "model.layers.0.self_attn.q_proj";

Result<QuantConfig> parse_side(const std::string& side) {
  const json::value config = json::parse("{}");
  const json::value value = json::parse(side);
  return parse_quant_config(config, &value);
}

Result<QuantConfig> parse_main(const std::string& block, const char* side = nullptr) {
  json::object config;
  config["quantization_config"] = json::parse(block);
  const json::value side_value = side != nullptr ? json::parse(side) : json::value();
  return parse_quant_config(config, side != nullptr ? &side_value : nullptr);
}

std::string error_of(const Result<QuantConfig>& result) {
  return result ? "accepted" : result.error().text();
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(QuantConfig, AbsentMeansUnquantized) {
  const auto config = parse_quant_config(json::parse("{}"), nullptr);
  ASSERT_TRUE(config.has_value());
  EXPECT_EQ(config->dialect, QuantConfig::Dialect::None);
  EXPECT_EQ(claimed_algo(*config, kProj), QuantAlgo::None);
}

TEST(QuantConfig, TheTwoSpellingsOfModelOptMeanTheSame) {
  for (const auto& result : {parse_side(kNested), parse_main(kFlat), parse_main(kFlat, kNested)}) {
    ASSERT_TRUE(result.has_value()) << result.error().text();
    EXPECT_EQ(result->dialect, QuantConfig::Dialect::ModelOpt);
    EXPECT_EQ(claimed_algo(*result, kProj), QuantAlgo::Nvfp4);
    EXPECT_EQ(claimed_algo(*result, "lm_head"), QuantAlgo::None);
    EXPECT_EQ(result->group_size, 16);
    EXPECT_EQ(result->kv_cache_algo, "FP8");
    EXPECT_THAT(result->warnings, IsEmpty());
  }
  EXPECT_EQ(parse_side(kNested)->producer, "modelopt 0.29.0");
}

TEST(QuantConfig, AnExcludeListThatDiffersBetweenTheFilesIsOneWarning) {
  const auto config =
      parse_main(with(kFlat, R"(["lm_head"])", R"(["lm_head","model.layers.1*"])"), kNested);
  ASSERT_TRUE(config.has_value());
  ASSERT_EQ(config->warnings.size(), 1u);
  EXPECT_THAT(config->warnings[0], HasSubstr("hf_quant_config.json"));
  EXPECT_THAT(config->warnings[0], HasSubstr("'model.layers.1*'"));
  EXPECT_EQ(claimed_algo(*config, "model.layers.1.mlp.up_proj"), QuantAlgo::None);
}

TEST(QuantConfig, AlgorithmsThatDifferBetweenTheFilesAreAWarning) {
  const auto config = parse_main(kFlat, with(kNested, "NVFP4", "FP8").c_str());
  ASSERT_TRUE(config.has_value());
  ASSERT_FALSE(config->warnings.empty());
  EXPECT_THAT(config->warnings[0], HasSubstr("says FP8"));
  EXPECT_EQ(config->algo, QuantAlgo::Nvfp4);
}

TEST(QuantConfig, FourSpellingsOfWeightOnly) {
  const std::string no_input =
      with(kFlat,
           R"("input_activations":{"dynamic":false,"num_bits":4,"type":"float","group_size":16})",
           R"("input_activations":null)");
  for (const std::string& block :
       {std::string(R"({"quant_method":"modelopt","quant_algo":"W4A16_NVFP4"})"),
        no_input,
        std::string(R"({"quant_method":"modelopt","quant_algo":"NVFP4","with_input_scale":false})"),
        with(no_input, "\"input_activations\":null,", "")}) {
    const auto config = parse_main(block);
    ASSERT_TRUE(config.has_value()) << config.error().text();
    EXPECT_EQ(config->algo, QuantAlgo::W4A16Nvfp4) << block;
  }
  EXPECT_EQ(parse_main(kFlat)->algo, QuantAlgo::Nvfp4);
}

TEST(QuantConfig, MixedPrecisionNamesItsLayersInTwoWays) {
  const std::string nested = R"({"quantization":{"quant_algo":"MIXED_PRECISION",
      "quantized_layers":{"model.layers.0.self_attn.q_proj":{"quant_algo":"FP8"},
      "model.layers.0.mlp.experts":{"quant_algo":"W4A16_NVFP4","group_size":16},
      "lm_head":{"quant_algo":"MXFP8","group_size":32}}}})";
  const auto config = parse_side(nested);
  ASSERT_TRUE(config.has_value()) << config.error().text();
  EXPECT_EQ(claimed_algo(*config, kProj), QuantAlgo::Fp8);
  EXPECT_EQ(claimed_algo(*config, "model.layers.0.mlp.experts.7.up_proj"), QuantAlgo::W4A16Nvfp4);
  EXPECT_EQ(claimed_algo(*config, "model.layers.0.mlp.expertsx"), QuantAlgo::None);
  EXPECT_EQ(claimed_algo(*config, "lm_head"), QuantAlgo::Mxfp8);
  EXPECT_EQ(claimed_algo(*config, "model.layers.1.self_attn.q_proj"), QuantAlgo::None);

  const auto flat = parse_main(R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION",
      "config_groups":{"group_0":{"weights":{"num_bits":8,"type":"float"},
      "input_activations":{"num_bits":8},"targets":["model.layers.0.self_attn.q_proj"]},
      "group_1":{"weights":{"num_bits":4,"type":"float","group_size":16},
      "targets":["model.layers.0.mlp.up_proj"]}}})");
  ASSERT_TRUE(flat.has_value()) << flat.error().text();
  EXPECT_EQ(claimed_algo(*flat, kProj), QuantAlgo::Fp8);
  EXPECT_EQ(claimed_algo(*flat, "model.layers.0.mlp.up_proj"), QuantAlgo::W4A16Nvfp4);
  EXPECT_EQ(claimed_algo(*flat, "model.layers.0.mlp.down_proj"), QuantAlgo::None);

  EXPECT_THAT(error_of(parse_side(with(nested, "MXFP8", "FP6"))),
              HasSubstr("hf_quant_config.json.quantization.quantized_layers.lm_head.quant_algo: "
                        "quantization algorithm 'FP6' is not supported"));
  EXPECT_THAT(error_of(parse_main(R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION"})")),
              HasSubstr("quantized_layers: missing"));
}

TEST(QuantConfig, AnEmptyMethodIsReadFromTheAlgorithmElseRefused) {
  for (const char* block : {R"({"quant_algo":"NVFP4","producer":{"name":"modelopt"},"ignore":[]})",
                            R"({"quant_algo":"NVFP4","quant_method":"","ignore":[]})"}) {
    const auto config = parse_main(block);
    ASSERT_TRUE(config.has_value()) << config.error().text();
    EXPECT_EQ(config->algo, QuantAlgo::Nvfp4);
    EXPECT_EQ(config->warnings.size(), 1u);
  }
  EXPECT_THAT(error_of(parse_main("{}")),
              HasSubstr("config.json.quantization_config.quant_algo: missing"));
}

TEST(QuantConfig, RefusesByNameWhatItDoesNotKnow) {
  EXPECT_THAT(error_of(parse_main(R"({"quant_method":"modelopt","quant_algo":"INT3"})")),
              HasSubstr("'INT3' is not supported"));
  EXPECT_THAT(error_of(parse_main(R"({"quant_method":"modelopt","quant_algo":"NVFP4_SVD"})")),
              HasSubstr("NVFP4_SVD"));
  EXPECT_THAT(error_of(parse_main(R"({"quant_method":"quark","exclude":[]})")),
              HasSubstr("'quark' is not supported"));
  EXPECT_THAT(error_of(parse_main(with(kFlat, R"("quant_algo":"NVFP4")", R"("quant_algo":7)"))),
              HasSubstr("quant_algo: expected a string"));
  EXPECT_THAT(error_of(parse_side(with(kNested, "\"group_size\":16", "\"group_size\":64"))),
              HasSubstr("group size 64 is not supported"));
  EXPECT_THAT(error_of(parse_side(with(kNested, "\"lm_head\"", "\"re:(\""))),
              HasSubstr("exclude_modules: 're:('"));
  EXPECT_THAT(error_of(parse_side(with(kNested, "[\"lm_head\"]", "[7]"))),
              HasSubstr("exclude_modules"));
}

TEST(QuantConfig, ReadsTheKvCacheInAllSpellings) {
  const std::string base = R"({"quant_method":"modelopt","quant_algo":"NVFP4",%})";
  EXPECT_EQ(parse_main(with(base, "%", R"("kv_cache_scheme":"NVFP4")"))->kv_cache_algo, "NVFP4");
  EXPECT_EQ(parse_main(with(base, "%", R"("kv_cache_scheme":null)"))->kv_cache_algo, "");
  EXPECT_EQ(parse_main(with(base, "%", R"("kv_cache_quant_algo":"FP8")"))->kv_cache_algo, "FP8");
  EXPECT_THAT(error_of(parse_main(with(base, "%", R"("kv_cache_scheme":3)"))),
              HasSubstr("kv_cache_scheme"));
}

constexpr const char* kCompressed = R"({"quant_method":"compressed-tensors",
    "format":"nvfp4-pack-quantized","version":"0.19.0","config_groups":{"group_0":{
    "format":"nvfp4-pack-quantized","targets":["Linear"],"output_activations":null,
    "input_activations":{"dynamic":"local","num_bits":4,"type":"float","group_size":16},
    "weights":{"actorder":null,"num_bits":4,"type":"float","strategy":"tensor_group",
    "group_size":16,"scale_dtype":"torch.float8_e4m3fn","zp_dtype":null}}},
    "ignore":["lm_head","re:.*mlp\\.gate$"],"transform_config":{},"sparsity_config":{}})";

TEST(QuantConfig, ReadsCompressedTensors) {
  const auto config = parse_main(kCompressed);
  ASSERT_TRUE(config.has_value()) << config.error().text();
  EXPECT_EQ(config->dialect, QuantConfig::Dialect::CompressedTensors);
  EXPECT_EQ(claimed_algo(*config, kProj), QuantAlgo::Nvfp4);
  EXPECT_EQ(claimed_algo(*config, "lm_head"), QuantAlgo::None);
  EXPECT_EQ(claimed_algo(*config, "model.layers.0.mlp.gate"), QuantAlgo::None);
  EXPECT_EQ(claimed_algo(*config, "model.layers.0.mlp.gate_proj"), QuantAlgo::Nvfp4);

  const auto weight_only = parse_main(with(
      kCompressed, R"({"dynamic":"local","num_bits":4,"type":"float","group_size":16})", "null"));
  EXPECT_EQ(claimed_algo(*weight_only, kProj), QuantAlgo::W4A16Nvfp4);
}

TEST(QuantConfig, TheFirstMatchingGroupOfCompressedTensorsWins) {
  const auto config = parse_main(R"({"quant_method":"compressed-tensors","format":"mixed-precision",
      "config_groups":{"group_0":{"format":"float-quantized","weights":{"num_bits":8,
      "type":"float","strategy":"channel"},"input_activations":{"num_bits":8},
      "targets":["re:.*self_attn\\.(q|k|v|o)_proj$","lm_head",
      "re:.*layers\\.1\\.mlp\\.(gate|up|down)_proj$"]},"group_1":{"format":"nvfp4-pack-quantized",
      "weights":{"num_bits":4,"type":"float","strategy":"tensor_group","group_size":16},
      "input_activations":null,"targets":["re:.*mlp\\.(gate|up|down)_proj$"]}},"ignore":[]})");
  ASSERT_TRUE(config.has_value()) << config.error().text();
  EXPECT_EQ(claimed_algo(*config, kProj), QuantAlgo::Fp8PerChannel);
  EXPECT_EQ(claimed_algo(*config, "lm_head"), QuantAlgo::Fp8PerChannel);
  EXPECT_EQ(claimed_algo(*config, "model.layers.1.mlp.up_proj"), QuantAlgo::Fp8PerChannel);
  EXPECT_EQ(claimed_algo(*config, "model.layers.0.mlp.up_proj"), QuantAlgo::W4A16Nvfp4);
  EXPECT_EQ(claimed_algo(*config, "model.layers.11.mlp.up_proj"), QuantAlgo::W4A16Nvfp4);
}

TEST(QuantConfig, RefusesCompressedTensorsThatMeanSomethingElse) {
  EXPECT_EQ(error_of(parse_main(kCompressed)), "accepted");
  std::string look_alike = kCompressed;
  for (size_t at = 0; (at = look_alike.find("nvfp4-pack", at)) != std::string::npos;) {
    look_alike.replace(at, 10, "mixfp4-pack");
    at += 11;
  }
  EXPECT_THAT(error_of(parse_main(look_alike)), HasSubstr("'mixfp4-pack-quantized'"));
  EXPECT_THAT(error_of(parse_main(with(
                  kCompressed, "\"transform_config\":{}", "\"transform_config\":{\"R1\":{}}"))),
              HasSubstr("transform_config: is not empty"));
  EXPECT_THAT(error_of(parse_main(
                  with(kCompressed, "\"group_size\":16,\"scale", "\"group_size\":32,\"scale"))),
              HasSubstr("groups of 16"));
  EXPECT_THAT(error_of(parse_main(R"({"quant_method":"compressed-tensors"})")),
              HasSubstr("config_groups: required but missing"));
}

TEST(QuantConfig, ReadsBlockFp8WithNvfp4Experts) {
  const auto config = parse_main(R"({"quant_method":"fp8","weight_block_size":[128,128],
      "moe_quant_algo":"NVFP4","quantized_layers":{"layers.0.ffn.experts":{"quant_algo":"NVFP4",
      "group_size":16}},"exclude_modules":["head"]})");
  ASSERT_TRUE(config.has_value()) << config.error().text();
  EXPECT_EQ(claimed_algo(*config, "layers.0.ffn.experts.3.w1"), QuantAlgo::Nvfp4);
  EXPECT_EQ(claimed_algo(*config, "layers.0.attn.wq_a"), QuantAlgo::Fp8Block);
  EXPECT_EQ(claimed_algo(*config, "head"), QuantAlgo::None);
}

}  // namespace
}  // namespace nibble::checkpoint
