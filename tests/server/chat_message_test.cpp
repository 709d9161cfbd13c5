// Reasoning and tool calls of chat answers: the message itself, then over HTTP, whole and streamed.
#include "server/chat_message.h"

#include <map>
#include <random>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "server/server_fixture.h"

namespace nibble::server {
namespace {

namespace json = boost::json;
using test::ServerFixture;

std::string shown(const ChatDelta& delta) {
  std::string text = "[" + delta.reasoning + "][" + delta.content + "]";
  for (const text::ToolCall& call : delta.calls) {
    text += call.name + call.arguments;
  }
  return text;
}

TEST(ChatMessage, GivesTheSameForRandomTextsInRandomPieces) {
  static const char* const kParts[] = {
      "a",
      " ",
      "\n",
      "<",
      "<think>",
      "</think>",
      "<tool_call>",
      "</tool_call>",
      "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>",
      "text",
  };
  std::mt19937 random(7);
  size_t with_all = 0;
  for (int i = 0; i < 5000; ++i) {
    ChatParsing parsing;
    parsing.reasoning = random() % 4 != 0;
    parsing.begins_with_reasoning = random() % 2 == 0;
    parsing.stream_reasoning = random() % 4 != 0;
    parsing.tool_dialect = random() % 4 != 0 ? "hermes" : "";
    parsing.one_call = random() % 4 == 0;
    std::string text;
    for (size_t k = random() % 12; k > 0; --k) {
      text += kParts[random() % std::size(kParts)];
    }
    ChatMessage at_once(parsing);
    ChatDelta whole = at_once.push(text);
    whole.append(at_once.finish());
    ChatMessage in_pieces(parsing);
    ChatDelta sum;
    for (size_t at = 0; at < text.size();) {
      const size_t size = std::min<size_t>(random() % 7, text.size() - at);
      ChatDelta delta = in_pieces.push(text.substr(at, size));
      if (!parsing.stream_reasoning && !delta.reasoning.empty()) {
        EXPECT_TRUE(sum.reasoning.empty()) << text;  // one piece
      }
      sum.append(std::move(delta));
      at += size;
    }
    sum.append(in_pieces.finish());
    EXPECT_EQ(shown(sum), shown(whole)) << text;
    EXPECT_EQ(in_pieces.num_calls(), whole.calls.size());
    EXPECT_LE(whole.calls.size(), parsing.one_call ? 1U : 12U);
    with_all += !whole.reasoning.empty() && !whole.content.empty() && !whole.calls.empty() ? 1 : 0;
  }
  EXPECT_GT(with_all, 50U);
}

TEST(ChatMessage, RefusesUnknownParsersWithTheKnownOnes) {
  EXPECT_TRUE(check_parser_names("", ""));
  EXPECT_TRUE(check_parser_names("qwen3", "hermes"));
  EXPECT_EQ(check_parser_names("kimi", "").error().text(),
            "--reasoning-parser: 'kimi' is not supported; known are deepseek-r1, deepseek-v3, "
            "glm45, nemotron_3, qwen3, qwen3-thinking");
  EXPECT_EQ(check_parser_names("", "pythonic").error().text(),
            "--tool-call-parser: 'pythonic' is not supported; known are hermes, qwen, qwen25, "
            "qwen3_coder, llama3, deepseekv3, deepseekv31");
}

// ---- over HTTP ----

constexpr const char* kAnswer =
    "<think>\nWhich city?\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"weather\", "
    "\"arguments\": {\"city\": \"Z\xC3\xBCrich\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";
constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"weather"}},
                {"type":"function","function":{"name":"time"}}])";

struct Chat {
  explicit Chat(std::string answer, std::string reasoning = "qwen3", std::string calls = "hermes")
      : fixture(config(std::move(reasoning), std::move(calls))) {
    fixture.engine.set_script([answer = std::move(answer)](const auto&) { return answer; });
  }
  static ServerConfig config(std::string reasoning, std::string calls) {
    ServerConfig config;
    config.reasoning_parser = std::move(reasoning);
    config.tool_call_parser = std::move(calls);
    return config;
  }
  static std::string body(const std::string& more) {
    return R"({"messages":[{"role":"user","content":"x"}],"max_tokens":180)" +
           (more.empty() ? "" : "," + more);
  }
  json::value whole(const std::string& more) {
    return fixture.post("/v1/chat/completions", body(more) + "}").json();
  }
  // The deltas of choice 0 put together as a client does it.
  json::object streamed(const std::string& more) {
    auto events = fixture.post("/v1/chat/completions", body(more) + R"(,"stream":true})").events();
    EXPECT_EQ(events.back(), "[DONE]");
    events.pop_back();
    json::object sum{{"content", ""}, {"reasoning_content", ""}};
    json::array calls;
    json::array logprobs;
    for (const std::string& event : events) {
      const auto value = json::parse(event);
      const json::value& choice = value.at("choices").at(0);
      const json::object& delta = choice.at("delta").as_object();
      for (const char* key : {"content", "reasoning_content"}) {
        if (const json::value* piece = delta.if_contains(key)) {
          sum[key].as_string().append(piece->as_string());
        }
      }
      if (const json::value* pieces = delta.if_contains("tool_calls")) {
        for (const json::value& call : pieces->get_array()) {
          EXPECT_EQ(call.at("index"), calls.size());
          calls.push_back(call);
        }
      }
      if (choice.at("logprobs").is_object()) {
        for (const json::value& item : choice.at("logprobs").at("content").get_array()) {
          logprobs.push_back(item);
        }
      }
      sum["finish_reason"] = choice.at("finish_reason");
    }
    sum["tool_calls"] = std::move(calls);
    sum["logprobs"] = std::move(logprobs);
    return sum;
  }
  ServerFixture fixture;
};

// Ids are made up for every answer.
json::value without_ids(json::value calls) {
  if (calls.is_array()) {
    for (json::value& call : calls.get_array()) {
      EXPECT_TRUE(call.at("id").as_string().starts_with("call_"));
      EXPECT_EQ(call.at("id").as_string().size(), 29U);
      call.as_object().erase("id");
    }
  }
  return calls;
}

TEST(ChatParsing, TakesAnAnswerApartWholeAndStreamedAlike) {
  Chat chat(kAnswer);
  const std::string more = std::string(kTools) + R"(,"logprobs":true,"seed":1)";
  const auto body = chat.whole(more);
  const json::value& choice = body.at("choices").at(0);
  const json::value& message = choice.at("message");
  EXPECT_EQ(message.at("reasoning_content"), "Which city?");
  EXPECT_EQ(message.at("content"), "I look.");
  ASSERT_EQ(message.at("tool_calls").get_array().size(), 2U);
  const json::value& call = message.at("tool_calls").at(0);
  EXPECT_EQ(call.at("type"), "function");
  EXPECT_EQ(call.at("function").at("name"), "weather");
  EXPECT_EQ(call.at("function").at("arguments"), "{\"city\": \"Z\xC3\xBCrich\"}");
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  const auto sum = chat.streamed(more);
  EXPECT_EQ(sum.at("reasoning_content"), message.at("reasoning_content"));
  EXPECT_EQ(sum.at("content"), message.at("content"));
  EXPECT_EQ(without_ids(sum.at("tool_calls")), without_ids(message.at("tool_calls")));
  EXPECT_EQ(sum.at("finish_reason"), "tool_calls");
  EXPECT_EQ(sum.at("logprobs"), choice.at("logprobs").at("content"));
}

TEST(ChatParsing, OnlyWhatWasAskedForIsTakenApart) {
  Chat chat(kAnswer);
  const auto message = [&](const std::string& more) {
    return chat.whole(more).at("choices").at(0).at("message");
  };
  const auto no_tools = message("");
  EXPECT_TRUE(no_tools.at("tool_calls").is_null());
  EXPECT_TRUE(no_tools.at("content").as_string().starts_with("I look.\n<tool_call>"));
  EXPECT_TRUE(message(std::string(kTools) + R"(,"tool_choice":"none")").at("tool_calls").is_null());
  const auto together = message(std::string(kTools) + R"(,"separate_reasoning":false)");
  EXPECT_TRUE(together.at("reasoning_content").is_null());
  EXPECT_EQ(together.at("content"), "<think>\nWhich city?\n</think>\n\nI look.");
  const auto one = message(std::string(kTools) + R"(,"parallel_tool_calls":false)");
  EXPECT_EQ(one.at("tool_calls").get_array().size(), 1U);
  Chat plain(kAnswer, "", "");
  EXPECT_EQ(plain.whole(kTools).at("choices").at(0).at("message").at("content"), kAnswer);
  EXPECT_EQ(chat.fixture.post("/v1/chat/completions", Chat::body(R"("separate_reasoning":1)") + "}")
                .json()
                .at("message"),
            "separate_reasoning: expected true or false, found an integer");
}

TEST(ChatParsing, AnAnswerOfCallsOnlyHasNoContent) {
  Chat chat("<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>");
  const auto message = chat.whole(kTools).at("choices").at(0).at("message");
  EXPECT_TRUE(message.at("content").is_null());
  EXPECT_TRUE(message.at("reasoning_content").is_null());
  EXPECT_EQ(chat.streamed(kTools).at("content"), "");
}

TEST(ChatParsing, AnAnswerThatIsCutOffKeepsItsReason) {
  Chat chat(kAnswer);
  const std::string more = std::string(kTools) + R"(,"max_completion_tokens":130)";
  const auto choice = chat.whole(more).at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "length");
  const auto sum = chat.streamed(more);
  EXPECT_EQ(sum.at("finish_reason"), "length");
  EXPECT_EQ(sum.at("content"), choice.at("message").at("content"));
}

TEST(ChatParsing, FollowsThePromptIntoTheReasoning) {
  Chat chat("hm\n</think>\n\nFour.");
  const auto message = [&](const std::string& messages) {
    return chat.fixture
        .post("/v1/chat/completions",
              R"({"continue_final_message":true,"messages":[{"role":"user","content":"x"},)" +
                  messages + "]}")
        .json()
        .at("choices")
        .at(0)
        .at("message");
  };
  const auto inside = message(R"({"role":"assistant","content":"<think>\nSo "})");
  EXPECT_EQ(inside.at("reasoning_content"), "hm");
  EXPECT_EQ(inside.at("content"), "Four.");
  const auto outside = message(R"({"role":"assistant","content":"So "})");
  EXPECT_TRUE(outside.at("reasoning_content").is_null());
  EXPECT_EQ(outside.at("content"), "hm\n</think>\n\nFour.");
  Chat always("hm</think>Four.", "deepseek-r1");
  EXPECT_EQ(always.whole("").at("choices").at(0).at("message").at("reasoning_content"), "hm");
  // "<think>" as ids, behind the message's place.
  const auto ids = chat.whole(R"("input_ids":[97,60,116,104,105,110,107,62,10])");
  EXPECT_EQ(ids.at("choices").at(0).at("message").at("content"), "Four.");
}

}  // namespace
}  // namespace nibble::server
