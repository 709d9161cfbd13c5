// Templates and contexts whose output (or error) was recorded from jinja2.
#include <gtest/gtest.h>

#include "base/json.h"
#include "support/data_dir.h"
#include "text/template/chat_template.h"

namespace nibble::text {
namespace {

std::string string_or_empty(const boost::json::object& object, std::string_view key) {
  const auto* found = object.if_contains(key);
  return found == nullptr ? std::string() : std::string(found->as_string());
}

size_t check_golden(const std::string& path) {
  auto golden = parse_json_file(path);
  if (!golden) {
    ADD_FAILURE() << golden.error().text();
    return 0;
  }
  const auto& sources = golden->as_object().at("templates").as_object();
  size_t count = 0;
  for (const auto& entry : golden->as_object().at("cases").as_array()) {
    const auto& test = entry.as_object();
    const std::string_view name = test.at("template").as_string();
    auto context = test.at("context").as_object();
    auto parsed = ChatTemplate::parse(std::string(sources.at(name).as_string()),
                                      string_or_empty(context, "bos_token"),
                                      string_or_empty(context, "eos_token"));
    if (!parsed) {
      ADD_FAILURE() << name << ": " << parsed.error().text();
      continue;
    }
    const boost::json::value messages = context.at("messages");
    const auto* tools = context.if_contains("tools");
    const auto* prompt = context.if_contains("add_generation_prompt");
    boost::json::object extra;
    for (const auto& [key, value] : context) {
      if (key != "messages" && key != "tools" && key != "add_generation_prompt") {
        extra[key] = value;
      }
    }
    const auto text =
        parsed->render(messages, tools, prompt != nullptr && prompt->as_bool(), extra);
    ++count;
    if (const auto* error = test.if_contains("error")) {
      EXPECT_FALSE(text) << name;
      if (!text) {
        EXPECT_EQ(text.error().message, std::string_view(error->as_string())) << name;
      }
    } else {
      EXPECT_TRUE(text) << name << ": " << (text ? "" : text.error().text());
      if (text) {
        EXPECT_EQ(*text, std::string_view(test.at("expected").as_string())) << name;
      }
    }
  }
  return count;
}

TEST(TemplateGolden, EveryRecordedRenderingIsEqual) {
  EXPECT_GE(check_golden(test::data_path("templates/golden.json")), 72U);
}

TEST(Template, ComparingSharedPartsStopsInsteadOfTakingForEver) {
  const auto render = [](const std::string& doublings, const std::string& last) {
    const auto parsed = ChatTemplate::parse(
        "{% set ns = namespace(a=(1,), b=(1,)) %}{% for i in range(" + doublings +
            ") %}{% set ns.a = (ns.a, ns.a) %}{% set ns.b = (ns.b, ns.b) %}{% endfor %}" + last,
        "",
        "");
    const auto text = parsed->render(boost::json::array{}, nullptr, false, {});
    return text ? *text : text.error().message;
  };
  EXPECT_EQ(render("10", "{{ ns.a == ns.b }}"), "True");
  EXPECT_EQ(render("60", "{{ ns.a == ns.b }}"), "values are too large to compare");
  EXPECT_EQ(render("10", "{{ {ns.a: 1} | length }}"), "1");
  EXPECT_EQ(render("60", "{{ {ns.a: 1} | length }}"), "values are too large to be a key");
}

TEST(TemplateGolden, TheFullSetIsEqualToo) {
  const auto path = test::golden_path("templates/golden.json");
  if (!path) {
    GTEST_SKIP() << "the full golden set is not here";
  }
  EXPECT_GE(check_golden(*path), 72U);
}

}  // namespace
}  // namespace nibble::text
