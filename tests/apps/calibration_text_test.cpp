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

TEST_F(CalibrationText, PromptsStayApartAndAreTakenAsTheyAre) {
  const std::string lines = write("p.jsonl",
                                  "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n"
                                  "{\"prompt\": \"<user>ho\"}\n");
  const auto apart = read_windows(lines, model_.path(), 99, std::nullopt);
  ASSERT_TRUE(apart.has_value()) << apart.error().text();
  ASSERT_EQ(apart->size(), 2u);
  EXPECT_EQ((*apart)[0], *read_calibration_tokens(write("1.txt", "<user>hi"), model_.path(), 99));
  EXPECT_EQ((*apart)[1], *read_calibration_tokens(write("2.txt", "<user>ho"), model_.path(), 99));
  const auto cut = read_windows(lines, model_.path(), 2, 1);
  ASSERT_EQ(cut->size(), 1u);
  EXPECT_EQ(cut->front().size(), 2u);
  for (const int64_t wanted : {0, 3}) {
    EXPECT_THAT(read_windows(lines, model_.path(), 99, wanted).error().text(),
                HasSubstr("windows: expected 1 to 2"));
  }
  EXPECT_THAT(read_windows(lines, model_.path(), 1, 1).error().text(), HasSubstr("window"));
  EXPECT_THAT(read_windows(write("b.jsonl", "{\"prompt\": 3}"), model_.path(), 99, std::nullopt)
                  .error()
                  .text(),
              HasSubstr("b.jsonl:1.prompt: expected a text"));
}

TEST_F(CalibrationText, ALineIsAPromptOrAConversationNotBoth) {
  const std::string both = write("both.jsonl",
                                 "{\"prompt\": \"one\"}\n"
                                 "{\"prompt\": \"two\", \"messages\": []}\n");
  const std::string words = "both.jsonl:2: expected either prompt or messages, found both";
  EXPECT_THAT(read_windows(both, model_.path(), 99, std::nullopt).error().text(), HasSubstr(words));
  EXPECT_THAT(read_calibration_tokens(both, model_.path(), 99).error().text(), HasSubstr(words));
  const std::string null = write("null.jsonl", "{\"prompt\": \"two\", \"messages\": null}\n");
  EXPECT_TRUE(read_windows(null, model_.path(), 99, std::nullopt).has_value());
}

TEST_F(CalibrationText, PromptsNeedNoChatTemplateButConversationsDo) {
  std::filesystem::remove(model_.file("chat_template.jinja"));
  const std::string prompts = write("p.jsonl", "{\"prompt\": \"one two\"}\n");
  EXPECT_TRUE(read_windows(prompts, model_.path(), 99, std::nullopt).has_value());
  const std::string chats = write("c.jsonl", "{\"messages\": []}\n");
  EXPECT_THAT(read_windows(chats, model_.path(), 99, std::nullopt).error().text(),
              HasSubstr("no chat template"));
}

TEST_F(CalibrationText, ATextIsCutIntoWindowsOfOneLength) {
  const std::string path = write("t.txt", "one two three four five six seven eight");
  const auto two = read_windows(path, model_.path(), 3, 2);
  ASSERT_TRUE(two.has_value()) << two.error().text();
  ASSERT_EQ(two->size(), 2u);
  EXPECT_EQ((*two)[1].size(), 3u);
  EXPECT_EQ(read_windows(path, model_.path(), 3, std::nullopt)->size(), 1u);
  EXPECT_THAT(read_windows(path, model_.path(), 3, 20).error().text(), HasSubstr("the text has"));
}

TEST_F(CalibrationText, EmptyAndBrokenFilesAreRefusedByName) {
  EXPECT_THAT(read_calibration_tokens(write("e.txt", " \n\n"), model_.path(), 10).error().text(),
              HasSubstr("e.txt: expected text, found an empty file"));
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
