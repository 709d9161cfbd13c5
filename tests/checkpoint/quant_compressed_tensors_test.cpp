#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/quant_dialects.h"
#include "checkpoint/quant_texts.h"

namespace nibble::checkpoint {
namespace {

using ::testing::HasSubstr;

constexpr const char* kCompressed = R"({"quant_method":"compressed-tensors",
    "format":"nvfp4-pack-quantized","version":"0.19.0","config_groups":{"group_0":{
    "format":"nvfp4-pack-quantized","targets":["Linear"],"output_activations":null,
    "input_activations":{"dynamic":"local","num_bits":4,"type":"float","group_size":16},
    "weights":{"actorder":null,"num_bits":4,"type":"float","strategy":"tensor_group",
    "group_size":16,"scale_dtype":"torch.float8_e4m3fn","zp_dtype":null}}},
    "ignore":["lm_head","re:.*mlp\\.gate$"],"transform_config":{},"sparsity_config":{}})";

TEST(QuantCompressedTensors, ReadsCompressedTensors) {
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

TEST(QuantCompressedTensors, TheFirstMatchingGroupOfCompressedTensorsWins) {
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

TEST(QuantCompressedTensors, RefusesCompressedTensorsThatMeanSomethingElse) {
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

}  // namespace
}  // namespace nibble::checkpoint
