// Token ids and decoded text of every tokenizer family, recorded from the reference tokenizers.
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "base/json.h"
#include "support/data_dir.h"
#include "text/tokenizer/stream_decoder.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble::text {
namespace {

std::vector<int32_t> to_ids(const boost::json::value& value) {
  std::vector<int32_t> ids;
  for (const auto& id : value.as_array()) {
    ids.push_back(static_cast<int32_t>(id.as_int64()));
  }
  return ids;
}

std::string streamed(const Tokenizer& tokenizer, std::span<const int32_t> ids, bool skip) {
  StreamDecoder decoder(tokenizer, skip);
  std::string text;
  for (const int32_t id : ids) {
    text += decoder.push(id);
  }
  return text + decoder.finish();
}

// `directory` holds <family>.tokenizer.json files and the recorded cases. Returns their number.
size_t check_golden(const std::string& directory, const std::string& name = "golden.json") {
  auto golden = parse_json_file(directory + "/" + name);
  EXPECT_TRUE(golden) << golden.error().text();
  size_t cases = 0;
  for (const auto& [family, list] : golden->as_object()) {
    const std::string path = directory + "/" + std::string(family) + ".tokenizer.json";
    auto tokenizer = Tokenizer::from_file(path);
    if (!tokenizer) {
      ADD_FAILURE() << path << ": " << tokenizer.error().text();
      continue;
    }
    for (const auto& entry : list.as_array()) {
      const auto& object = entry.as_object();
      const std::string text(object.at("text").as_string());
      const std::vector<int32_t> ids = to_ids(object.at("ids"));
      EXPECT_EQ(tokenizer->encode(text, false), ids) << family << ": " << text;
      EXPECT_EQ(tokenizer->encode(text, true), to_ids(object.at("ids_with_special")))
          << family << ": " << text;
      for (const bool skip : {false, true}) {
        const std::string expected(object.at(skip ? "decoded_skip" : "decoded").as_string());
        EXPECT_EQ(tokenizer->decode(ids, skip), expected) << family << ": " << text;
        EXPECT_EQ(streamed(*tokenizer, ids, skip), expected) << family << ": " << text;
      }
      ++cases;
    }
  }
  return cases;
}

TEST(TokenizerGolden, EveryFamilyOfTheFullSetGivesTheRecordedIdsAndText) {
  const auto directory = test::golden_path("tokenizers");
  if (!directory) {
    GTEST_SKIP() << "the full golden set is not here";
  }
  EXPECT_GE(check_golden(*directory), 8U * 63U);
}

TEST(TokenizerGolden, ComponentsThatTheFamiliesLackGiveTheRecordedIdsAndText) {
  EXPECT_GE(check_golden(test::data_path("tokenizers"), "extra_golden.json"), 400U);
}

TEST(TokenizerGolden, TheCompactSetGivesTheRecordedIdsAndText) {
  EXPECT_GE(check_golden(test::data_path("tokenizers")), 200U);
}

}  // namespace
}  // namespace nibble::text
