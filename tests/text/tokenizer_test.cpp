#include "text/tokenizer/tokenizer.h"

#include <thread>

#include <gtest/gtest.h>

#include "support/data_dir.h"
#include "support/present.h"

namespace nibble::text {
namespace {

Tokenizer load(const std::string& family) {
  auto loaded = Tokenizer::from_file(test::data_path("tokenizers/" + family + ".tokenizer.json"));
  if (!loaded) {
    ADD_FAILURE() << loaded.error().text();
    std::abort();
  }
  return std::move(*loaded);
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer tokenizer = load("smollm2");
  EXPECT_EQ(tokenizer.vocab_size(), 703);
  EXPECT_EQ(tokenizer.token_id("<|im_start|>"), 3);
  EXPECT_EQ(tokenizer.token_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.token_text(3), "<|im_start|>");
  EXPECT_EQ(tokenizer.token_text(-1), "");
  EXPECT_EQ(tokenizer.token_text(703), "");
  EXPECT_TRUE(tokenizer.is_special(3));
  EXPECT_FALSE(tokenizer.is_special(700));  // <think> is added, not special
  EXPECT_FALSE(tokenizer.is_special(100000));
  const int32_t space = test::present(tokenizer.token_id("\xC4\xA0"));
  EXPECT_EQ(tokenizer.token_bytes(space), " ");
}

TEST(Tokenizer, DecodingGivesBackWhatWasEncoded) {
  const std::string text = "Hello  w\xC3\xB6rld \xF0\x9F\x99\x82\n\t12345 <|im_end|> ok ";
  for (const std::string family : {"smollm2", "llama3", "qwen2", "deepseek_v3", "tekken", "gpt2"}) {
    const Tokenizer tokenizer = load(family);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text) << family;
  }
}

TEST(Tokenizer, BytesThatAreNotUtf8CountAsReplacementCharacters) {
  const Tokenizer tokenizer = load("smollm2");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a\xFFz", false), false), "a\xEF\xBF\xBDz");
}

TEST(Tokenizer, IdsOutsideTheVocabularyAreSkipped) {
  const Tokenizer tokenizer = load("smollm2");
  const std::vector<int32_t> ids = {-5, 3, 1 << 30};
  EXPECT_EQ(tokenizer.decode(ids, false), "<|im_start|>");
  EXPECT_EQ(tokenizer.decode(ids, true), "");
}

TEST(Tokenizer, LongTextsOfOneKindTakeNoQuadraticTime) {
  const Tokenizer tokenizer = load("llama3");
  for (const std::string unit : {"a", " ", "\n", "1", "<", "\xE6\x97\xA5", "!"}) {
    std::string text;
    while (text.size() < 200'000) {
      text += unit;
    }
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text);
  }
}

TEST(Tokenizer, EncodesOnManyThreadsAtOnce) {
  const Tokenizer tokenizer = load("qwen2");
  const std::string text = "I'm here: caf\xC3\xA9 123, isn't it?\n";
  const auto expected = tokenizer.encode(text, true);
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  threads.reserve(wrong.size());
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        count += tokenizer.encode(text, true) == expected ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(Tokenizer, AFileThatIsNotThereIsAnError) {
  EXPECT_FALSE(Tokenizer::from_file("/nonexistent/tokenizer.json"));
}

}  // namespace
}  // namespace nibble::text
