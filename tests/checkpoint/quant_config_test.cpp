#include "checkpoint/quant_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/quant_texts.h"

namespace nibble::checkpoint {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

}  // namespace
}  // namespace nibble::checkpoint
