#include "apps/calibration_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/data_dir.h"
#include "support/temp_dir.h"

namespace nibble::apps {
namespace {

using ::testing::HasSubstr;

// A folder with a tokenizer and a chat template that marks every message.
class CalibrationText : public ::testing::Test {
 protected:
  CalibrationText() {
    std::filesystem::copy_file(test::data_path("tokenizers/gpt2.tokenizer.json"),
                               model_.file("tokenizer.json"));
    model_.write("chat_template.jinja",
                 "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}");
  }
  std::string write(const std::string& name, const std::string& content) {
    text_.write(name, content);
    return text_.file(name);
  }
  test::TempDir model_;
  test::TempDir text_;
};

TEST_F(CalibrationText, PlainTextGivesAtMostTheTokensAskedFor) {
  const std::string path = write("a.txt", "one two three four five six");
  const auto all = read_calibration_tokens(path, model_.path(), 1000);
  ASSERT_TRUE(all.has_value()) << all.error().text();
  EXPECT_GT(all->size(), 5u);
  const auto some = read_calibration_tokens(path, model_.path(), 3);
  EXPECT_EQ(*some, std::vector<int32_t>(all->begin(), all->begin() + 3));
}

TEST_F(CalibrationText, ChatsAreRenderedWithTheModelsTemplate) {
  const std::string chats = write("a.jsonl",
                                  "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n\n"
                                  "{\"messages\": [{\"role\": \"user\", \"content\": \"ho\"}]}\n");
  const auto rendered = read_calibration_tokens(chats, model_.path(), 1000);
  ASSERT_TRUE(rendered.has_value()) << rendered.error().text();
  auto expected = *read_calibration_tokens(write("1.txt", "<user>hi"), model_.path(), 1000);
  const auto second = *read_calibration_tokens(write("2.txt", "<user>ho"), model_.path(), 1000);
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_EQ(*rendered, expected);
}

TEST_F(CalibrationText, EmptyAndBrokenFilesAreRefusedByName) {
  EXPECT_THAT(read_calibration_tokens(write("e.txt", " \n\n"), model_.path(), 10).error().text(),
              HasSubstr("e.txt: expected calibration text, found an empty file"));
  EXPECT_THAT(read_calibration_tokens(write("b.jsonl", "\n{\"messages\": 3}"), model_.path(), 10)
                  .error()
                  .text(),
              HasSubstr("b.jsonl:2.messages: expected an array of messages"));
  EXPECT_THAT(read_calibration_tokens(write("x.txt", "a \xFF b"), model_.path(), 10).error().text(),
              HasSubstr("x.txt: is not UTF-8 text"));
  EXPECT_THAT(read_calibration_tokens(text_.file("none.txt"), model_.path(), 10).error().text(),
              HasSubstr("none.txt"));
}

}  // namespace
}  // namespace nibble::apps
