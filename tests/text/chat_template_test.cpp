#include "text/template/chat_template.h"

#include <thread>

#include <gtest/gtest.h>

namespace nibble::text {
namespace {

const boost::json::value kMessages = boost::json::parse(
    R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}])");

TEST(ChatTemplate, GivesTheTemplateWhatTransformersGives) {
  const auto parsed = ChatTemplate::parse(
      "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
      "{{ tools }}{{ add_generation_prompt }}{{ enable_thinking }}{{ eos_token }}",
      "<s>",
      "</s>");
  ASSERT_TRUE(parsed) << parsed.error().text();
  const auto text = parsed->render(kMessages, nullptr, true, {{"enable_thinking", false}});
  ASSERT_TRUE(text) << text.error().text();
  EXPECT_EQ(*text, "<s>user:Hi;assistant:Yo;NoneTrueFalse</s>");
  const boost::json::value tools = boost::json::array{1};
  EXPECT_EQ(*parsed->render(boost::json::array(), &tools, false, {{"bos_token", "B"}}),
            "B[1]False</s>");
}

TEST(ChatTemplate, ErrorsSayWhereInTheTemplate) {
  const auto parsed = ChatTemplate::parse("a\n{{ raise_exception('no system') }}", "", "");
  ASSERT_TRUE(parsed);
  const auto text = parsed->render(kMessages, nullptr, false, {});
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().message, "no system");
  EXPECT_EQ(text.error().where, "chat template, line 2");
  EXPECT_FALSE(ChatTemplate::parse("\xFF", "", ""));
  EXPECT_FALSE(ChatTemplate::parse("{% if %}", "", ""));
}

TEST(ChatTemplate, RendersOnManyThreadsAtOnce) {
  const auto parsed = ChatTemplate::parse(
      "{% macro m(x) %}<{{ x }}>{% endmacro %}{% for m2 in messages %}{{ m(m2.content) }}{% endfor "
      "%}",
      "",
      "");
  ASSERT_TRUE(parsed);
  std::vector<std::string> results(4);
  std::vector<std::thread> threads;
  for (std::string& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        result = *parsed->render(kMessages, nullptr, false, {});
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(results, std::vector<std::string>(4, "<Hi><Yo>"));
}

}  // namespace
}  // namespace nibble::text
