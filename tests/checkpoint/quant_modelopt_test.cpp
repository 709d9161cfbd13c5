#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/quant_dialects.h"
#include "checkpoint/quant_texts.h"

namespace nibble::checkpoint {
namespace {

using ::testing::HasSubstr;

TEST(QuantModelOpt, FourSpellingsOfWeightOnly) {
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

TEST(QuantModelOpt, MixedPrecisionNamesItsLayersInTwoWays) {
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

TEST(QuantModelOpt, ReadsTheKvCacheInAllSpellings) {
  const std::string base = R"({"quant_method":"modelopt","quant_algo":"NVFP4",%})";
  EXPECT_EQ(parse_main(with(base, "%", R"("kv_cache_scheme":"NVFP4")"))->kv_cache_algo, "NVFP4");
  EXPECT_EQ(parse_main(with(base, "%", R"("kv_cache_scheme":null)"))->kv_cache_algo, "");
  EXPECT_EQ(parse_main(with(base, "%", R"("kv_cache_quant_algo":"FP8")"))->kv_cache_algo, "FP8");
  EXPECT_THAT(error_of(parse_main(with(base, "%", R"("kv_cache_scheme":3)"))),
              HasSubstr("kv_cache_scheme"));
}

TEST(QuantModelOpt, ReadsBlockFp8WithNvfp4Experts) {
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
