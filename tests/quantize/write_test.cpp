#include "quantize/write.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "checkpoint/quant_config.h"
#include "support/temp_dir.h"

namespace nibble::quantize {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Write, BothConfigFilesReadBackToTheSameClaims) {
  const std::vector<std::string> excluded = {"lm_head", "model.layers.0.mlp.gate"};
  const json::object source{{"hidden_size", 64}, {"rms_norm_eps", 1e-5}};
  const json::value config = config_with_quantization(source, {Layout::ModelOpt, false, excluded});
  const json::value side = hf_quant_config({Layout::ModelOpt, false, excluded});
  const auto parsed = checkpoint::parse_quant_config(config, &side);
  ASSERT_TRUE(parsed.has_value()) << parsed.error().text();
  EXPECT_EQ(parsed->warnings.size(), 0u);
  EXPECT_EQ(claimed_algo(*parsed, "model.layers.0.mlp.gate"), checkpoint::QuantAlgo::None);
  EXPECT_EQ(claimed_algo(*parsed, "model.layers.0.mlp.gate_proj"),
            checkpoint::QuantAlgo::W4A16Nvfp4);
  EXPECT_EQ(config.at("hidden_size").as_int64(), 64);
}

TEST(Write, PrintsJsonForPeopleWithoutChangingIt) {
  const json::value value = json::parse(
      R"({"a":[1,2.0,1e-5,"x\n\u00e9"],"b":{},"c":[],"d":null,"e":{"f":true},"g":1e300})");
  const std::string text = pretty_json(value);
  EXPECT_EQ(*parse_json(text, "t"), value);
  EXPECT_THAT(text, HasSubstr("\n  \"a\": [\n    1,\n    2.0,\n    1e-05,"));
  EXPECT_THAT(text, HasSubstr("\"b\": {}"));
}

TEST(Write, NamesShardsAsEverybodyDoes) {
  EXPECT_EQ(shard_name(0, 1), "model.safetensors");
  EXPECT_EQ(shard_name(1, 12), "model-00002-of-00012.safetensors");
}

TEST(Write, CopiesTheFilesOfTheTokenizerAndNotTheWeights) {
  const test::TempDir source;
  for (const char* name : {"tokenizer.json",
                           "chat_template.jinja",
                           "LICENSE",
                           "config.json",
                           "model.safetensors",
                           "model.safetensors.index.json",
                           "merges.txt",
                           "hf_quant_config.json",
                           "weights_manifest.json",
                           "pytorch_model.bin"}) {
    source.write(name, name);
  }
  const test::TempDir destination;
  EXPECT_THAT(copy_side_files(source.path(), destination.path()),
              ElementsAre("LICENSE", "chat_template.jinja", "merges.txt", "tokenizer.json"));
  EXPECT_EQ(destination.read("LICENSE"), "LICENSE");
}

}  // namespace
}  // namespace nibble::quantize
