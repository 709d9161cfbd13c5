#include "text/tokenizer/tokenizer_json.h"

#include <gtest/gtest.h>

#include "text/tokenizer/tokenizer.h"

namespace nibble::text {
namespace {

std::string document(const std::string& model, const std::string& rest = "") {
  return R"({"model": )" + model + (rest.empty() ? "" : ", " + rest) + "}";
}

const std::string kModel =
    R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]})";

std::string refusal(const std::string& json) {
  const auto loaded = Tokenizer::from_json(json);
  return loaded ? "accepted" : loaded.error().text();
}

TEST(TokenizerJson, MergesAreReadInBothForms) {
  for (const std::string merges : {R"(["a b"])", R"([["a", "b"]])"}) {
    const auto loaded = Tokenizer::from_json(
        document(R"({"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": )" + merges + "}"));
    ASSERT_TRUE(loaded) << loaded.error().text();
    EXPECT_EQ(loaded->encode("abab", false), (std::vector<int32_t>{2, 2}));
  }
}

TEST(TokenizerJson, WhatIsWrongIsNamedWithItsPath) {
  const struct {
    std::string json;
    const char* says;
  } kCases[] = {
      {"[]", "object"},
      {"{", "tokenizer.json"},
      {"{}", "tokenizer.json.model"},
      {document(R"({"type": "Unigram", "vocab": []})"), "model type \"Unigram\" is not supported"},
      {document(R"({"vocab": {"a": 0}, "merges": [], "dropout": 0.1})"), "model.dropout"},
      {document(R"({"vocab": {"a": "x"}, "merges": []})"), "tokenizer.json.model.vocab.a"},
      {document(R"({"vocab": {"a": 0, "b": 0}, "merges": []})"), "is both"},
      {document(R"({"vocab": {"a": -1}, "merges": []})"), "out of range"},
      {document(R"({"vocab": {"a": 4000000000}, "merges": []})"), "out of range"},
      {document(R"({"vocab": {"a": 4000000}, "merges": []})"), "out of range"},
      {document(R"({"vocab": {"a": 0}})"), "model.merges"},
      {document(R"({"vocab": {"a": 0}, "merges": ["a"]})"), "merges[0]"},
      {document(R"({"vocab": {"a": 0}, "merges": ["a b"]})"), "not in the vocabulary"},
      {document(R"({"vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]})"), "\"ab\""},
      {document(R"({"vocab": {"a": 0}, "merges": [], "unk_token": "u"})"), "unk_token"},
      {document(kModel, R"("normalizer": {"type": "Precompiled"})"),
       "tokenizer.json.normalizer.type: normalizer type \"Precompiled\" is not supported"},
      {document(kModel,
                R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "X"}]})"),
       "pre_tokenizer.pretokenizers[0].type"},
      {document(kModel, R"("pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}})"),
       "pattern.Regex"},
      {document(kModel, R"("decoder": {"type": "CTC"})"), "decoder type \"CTC\""},
      {document(kModel, R"("post_processor": {"type": "X"})"), "post-processor type \"X\""},
      {document(kModel, R"("added_tokens": [{"id": 0, "content": "z"}])"), "is both"},
      {document(kModel, R"("added_tokens": [{"id": 9, "content": "a"}])"), "two ids"},
      {document(kModel, R"("added_tokens": {"id": 9})"), "expected an array"},
      {document(kModel, R"("added_tokens": [{"content": "z"}])"), "added_tokens[0].id"},
  };
  for (const auto& test : kCases) {
    EXPECT_NE(refusal(test.json).find(test.says), std::string::npos)
        << test.json << "\n  says " << refusal(test.json);
  }
  EXPECT_EQ(refusal(document(kModel)), "accepted");
}

TEST(TokenizerJson, ThePostProcessorPutsOnlyKnownTokensAroundTexts) {
  const auto with = [](int id) {
    return refusal(document(
        kModel,
        R"("post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "s"}},
            {"Sequence": {"id": "A"}}], "special_tokens": {"s": {"ids": [)" +
            std::to_string(id) + "]}}}"));
  };
  EXPECT_EQ(with(2), "accepted");
  EXPECT_EQ(with(3),
            "tokenizer.json.post_processor: puts token id 3 around texts, which is not in the "
            "vocabulary");
  EXPECT_EQ(with(2147483647),
            "tokenizer.json.post_processor: puts token id 2147483647 around texts, which is not in "
            "the vocabulary");
}

// `steps` replacements of a by two of it, with `key` for the name of the pattern's kind.
std::string doubling(int steps, const std::string& key) {
  std::string list;
  for (int i = 0; i < steps; ++i) {
    list += std::string(list.empty() ? "" : ",") + R"({"type": "Replace", "pattern": {")" + key +
            R"(": "a"}, "content": "aa"})";
  }
  return list;
}

TEST(TokenizerJson, StepsThatBlowUpATextAreRefused) {
  const auto normalizer = [](const std::string& list) {
    return refusal(
        document(kModel, R"("normalizer": {"type": "Sequence", "normalizers": [)" + list + "]}"));
  };
  const std::string too_much =
      " can make a text 128 times and 0 bytes longer; at most 64 times and 256 bytes are supported";
  for (const char* key : {"String", "Regex"}) {
    EXPECT_EQ(normalizer(doubling(6, key)), "accepted");
    EXPECT_EQ(normalizer(doubling(7, key)),
              "tokenizer.json.normalizer.normalizers[6]: the steps up to this one" + too_much);
  }
  EXPECT_EQ(refusal(document(
                kModel,
                R"("decoder": {"type": "Sequence", "decoders": [)" + doubling(7, "String") + "]}")),
            "tokenizer.json.decoder.decoders[6]: the steps up to this one" + too_much);
  // An empty match is beside every byte; where a match is longer than what it becomes, the text
  // does not grow.
  const auto replace = [&](const std::string& pattern, const std::string& content) {
    return normalizer(R"({"type": "Replace", "pattern": {"Regex": ")" + pattern +
                      R"("}, "content": ")" + content + R"("})");
  };
  EXPECT_NE(replace("b*", std::string(64, 'c')), "accepted");
  EXPECT_EQ(replace("b{8,}", std::string(64 * 8, 'c')), "accepted");
  EXPECT_NE(replace("b{8,}", std::string(64 * 8 + 1, 'c')), "accepted");
  const std::string prefix =
      R"({"type": "Prepend", "prepend": ")" + std::string(100, 'x') + R"("})";
  EXPECT_EQ(normalizer(prefix + "," + prefix), "accepted");
  EXPECT_NE(normalizer(prefix + "," + prefix + "," + prefix), "accepted");
  EXPECT_NE(normalizer(prefix + "," + doubling(2, "String")), "accepted");  // the prefix grows too
}

TEST(TokenizerJson, AddedTokensOfTheConfigAreMerged) {
  const std::string config =
      R"({"added_tokens_decoder": {"3": {"content": "<x>", "special": true}, "0": {"content": "a"}}})";
  const auto parts = parse_tokenizer_json(
      document(kModel, R"("added_tokens": [{"id": 0, "content": "a"}])"), config);
  ASSERT_TRUE(parts) << parts.error().text();
  EXPECT_EQ((*parts)->tokens.size(), 4U);
  EXPECT_TRUE((*parts)->tokens[3].special);
  EXPECT_FALSE(parse_tokenizer_json(document(kModel),
                                    R"({"added_tokens_decoder": {"x": {"content": "<x>"}}})"));
}

}  // namespace
}  // namespace nibble::text
