#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "text/template/chat_template.h"

namespace nibble::text {
namespace {

class LoadChatTemplate : public ::testing::Test {
 protected:
  LoadChatTemplate() {
    directory_ = std::filesystem::path(::testing::TempDir()) /
                 ("chat_template_" +
                  std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  ~LoadChatTemplate() override { std::filesystem::remove_all(directory_); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(directory_ / name) << content;
  }
  Result<ChatTemplate> load() const { return load_chat_template(directory_.string()); }

  std::filesystem::path directory_;
};

TEST_F(LoadChatTemplate, TheJinjaFileComesBeforeTheConfig) {
  write("tokenizer_config.json",
        R"({"chat_template": "config", "bos_token": "<s>", "eos_token": {"content": "</s>"}})");
  ASSERT_TRUE(load());
  EXPECT_EQ(load()->source(), "config");
  EXPECT_EQ(load()->bos_token(), "<s>");
  EXPECT_EQ(load()->eos_token(), "</s>");
  write("chat_template.jinja", "file");
  EXPECT_EQ(load()->source(), "file");
}

TEST_F(LoadChatTemplate, OfNamedTemplatesTheDefaultIsTaken) {
  write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(load()->source(), "d");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "r"}]})");
  const auto missing = load();
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().text().find("rag"), std::string::npos);
}

TEST_F(LoadChatTemplate, TheOlderJsonFileIsRead) {
  write("chat_template.json", R"({"chat_template": "old"})");
  EXPECT_EQ(load()->source(), "old");
}

TEST_F(LoadChatTemplate, AFileOfItsOwnTakesTheFoldersSpecialTokens) {
  write("own.jinja", "own");
  const auto own = [&] {
    return load_chat_template(directory_.string(), (directory_ / "own.jinja").string());
  };
  ASSERT_TRUE(own());
  EXPECT_EQ(own()->source(), "own");
  EXPECT_EQ(own()->eos_token(), "");
  // Its template, which is none, is not looked at.
  write("tokenizer_config.json",
        R"({"chat_template": 7, "bos_token": "<s>", "eos_token": {"content": "</s>"}})");
  ASSERT_TRUE(own());
  EXPECT_EQ(own()->bos_token(), "<s>");
  EXPECT_EQ(own()->eos_token(), "</s>");
  write("tokenizer_config.json", R"({"eos_token": 7})");
  EXPECT_NE(own().error().text().find("tokenizer_config.json.eos_token"), std::string::npos);
  std::filesystem::remove(directory_ / "own.jinja");
  EXPECT_NE(own().error().text().find("own.jinja"), std::string::npos);
}

TEST_F(LoadChatTemplate, NoTemplateIsNotFoundAndABadOneIsRefused) {
  const auto none = load();
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::NotFound);
  write("tokenizer_config.json", R"({"chat_template": 7})");
  EXPECT_FALSE(load());
  write("tokenizer_config.json", "{");
  EXPECT_FALSE(load());
}

}  // namespace
}  // namespace nibble::text
