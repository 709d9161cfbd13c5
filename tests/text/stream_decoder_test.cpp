#include "text/tokenizer/stream_decoder.h"

#include <random>

#include <gtest/gtest.h>

#include "support/data_dir.h"
#include "support/present.h"
#include "text/tokenizer/unicode.h"

namespace nibble::text {
namespace {

// Random ids make every kind of broken and whole character.
TEST(StreamDecoder, PiecesAreWholeCharactersAndTogetherTheDecodedText) {
  for (const std::string family :
       {"smollm2", "qwen2", "llama2", "gemma", "metaspace_first", "clip", "lowercase_words"}) {
    const auto tokenizer =
        Tokenizer::from_file(test::data_path("tokenizers/" + family + ".tokenizer.json"));
    ASSERT_TRUE(tokenizer) << tokenizer.error().text();
    std::mt19937 random(7);
    for (int round = 0; round < 300; ++round) {
      const bool skip = round % 2 == 0;
      std::vector<int32_t> ids;
      for (auto i = random() % 20; i > 0; --i) {
        ids.push_back(
            static_cast<int32_t>(random() % static_cast<uint64_t>(tokenizer->vocab_size())));
      }
      StreamDecoder decoder(*tokenizer, skip);
      std::string text;
      for (const int32_t id : ids) {
        const std::string piece = decoder.push(id);
        ASSERT_TRUE(is_valid_utf8(piece)) << family;
        text += piece;
      }
      text += decoder.finish();
      ASSERT_EQ(text, tokenizer->decode(ids, skip)) << family;
    }
  }
}

TEST(StreamDecoder, ACharacterInPartsComesWithItsLastByte) {
  const auto tokenizer = Tokenizer::from_file(test::data_path("tokenizers/smollm2.tokenizer.json"));
  ASSERT_TRUE(tokenizer);
  StreamDecoder decoder(*tokenizer, false);
  const int32_t first = test::present(tokenizer->token_id("\xC3\xB0"));   // byte F0
  const int32_t second = test::present(tokenizer->token_id("\xC5\x81"));  // byte 9F
  EXPECT_EQ(decoder.push(first), "");
  EXPECT_EQ(decoder.push(second), "");
  EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace nibble::text
