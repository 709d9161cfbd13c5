#include "text/tokenizer/component_json.h"

#include <gtest/gtest.h>

namespace nibble::text {
namespace {

boost::json::value json(const std::string& text) {
  boost::json::parse_options options;
  options.max_depth = 200;
  return boost::json::parse(text, {}, options);
}

TEST(ComponentJson, SequencesAreFlattenedInOrder) {
  const auto value = json(R"({"type": "Sequence", "normalizers": [{"type": "NFC"},
      {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}, {"type": "Prepend", "prepend": "_"}]})");
  const auto steps = read_normalizer(&value, "n");
  ASSERT_TRUE(steps) << steps.error().text();
  ASSERT_EQ(steps->size(), 3U);
  EXPECT_TRUE(std::holds_alternative<UnicodeForm>((*steps)[0]));
  EXPECT_TRUE(std::holds_alternative<Lowercase>((*steps)[1]));
  EXPECT_TRUE(std::holds_alternative<PrependText>((*steps)[2]));
}

TEST(ComponentJson, NoComponentIsNoSteps) {
  const boost::json::value null = nullptr;
  EXPECT_TRUE(read_normalizer(nullptr, "n")->empty());
  EXPECT_TRUE(read_pretokenizer(&null, "p")->empty());
  EXPECT_TRUE(read_decoder(&null, "d")->empty());
}

TEST(ComponentJson, ByteLevelIsSpaceRegexAndAlphabet) {
  const auto all = json(R"({"type": "ByteLevel"})");
  EXPECT_EQ(read_pretokenizer(&all, "p")->size(), 3U);
  const auto plain =
      json(R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})");
  EXPECT_EQ(read_pretokenizer(&plain, "p")->size(), 1U);
}

TEST(ComponentJson, TemplatesSayWhatGoesAroundAText) {
  const auto value = json(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"},
      {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}},
       {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}],
       "special_tokens": {"<s>": {"ids": [1, 5]}, "</s>": {"ids": [2]}}}]})");
  const auto ids = read_post_processor(&value, "p");
  ASSERT_TRUE(ids) << ids.error().text();
  EXPECT_EQ(ids->prefix, (std::vector<int32_t>{1, 5}));
  EXPECT_EQ(ids->suffix, (std::vector<int32_t>{2}));
  const auto roberta =
      json(R"({"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]})");
  EXPECT_EQ(read_post_processor(&roberta, "p")->suffix, (std::vector<int32_t>{2}));
}

TEST(ComponentJson, WrongFieldsAreNamed) {
  const auto where = [](const std::string& text) {
    const auto value = json(text);
    const auto steps = read_pretokenizer(&value, "p");
    return steps ? "accepted" : steps.error().where;
  };
  EXPECT_EQ(where(R"({"type": "Split", "pattern": {"String": " "}, "behavior": "Odd"})"),
            "p.behavior");
  EXPECT_EQ(where(R"({"type": "Metaspace", "replacement": "ab"})"), "p.replacement");
  EXPECT_EQ(where(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "x"})"),
            "p.prepend_scheme");
  EXPECT_EQ(where(R"({"type": "FixedLength", "length": 0})"), "p.length");
  EXPECT_EQ(where(R"({"type": "Sequence"})"), "p.pretokenizers");
  EXPECT_EQ(where(R"({"type": "Digits", "individual_digits": 1})"), "p.individual_digits");
  EXPECT_EQ(where(R"({"type": "Digits"})"), "accepted");
}

TEST(ComponentJson, NestingAndSizesAreLimited) {
  std::string deep = R"({"type": "NFC"})";
  for (int i = 0; i < 20; ++i) {
    deep = R"({"type": "Sequence", "normalizers": [)" + deep + "]}";
  }
  const auto nested = json(deep);
  EXPECT_FALSE(read_normalizer(&nested, "n"));
  std::string many = R"({"type": "NFC"})";
  for (int i = 0; i < 300; ++i) {
    many += R"(, {"type": "NFC"})";
  }
  const auto wide = json(R"({"type": "Sequence", "normalizers": [)" + many + "]}");
  EXPECT_FALSE(read_normalizer(&wide, "n"));
  const auto strip = json(R"({"type": "Strip", "content": " ", "start": 99999, "stop": 0})");
  EXPECT_FALSE(read_decoder(&strip, "d"));
}

}  // namespace
}  // namespace nibble::text
