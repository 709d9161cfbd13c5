// /v1/completions and /v1/chat/completions against the fake engine.
#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "server/server_fixture.h"

namespace nibble::server {
namespace {

namespace json = boost::json;
using test::ServerFixture;

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kCompletions = "/v1/completions";

TEST(Completions, AnswersInOpenAisForm) {
  ServerFixture fixture;
  const auto body = fixture.post(kCompletions, R"({"model":"m","prompt":"hello","seed":5})").json();
  EXPECT_EQ(body.at("object"), "text_completion");
  EXPECT_EQ(body.at("model"), "m");
  EXPECT_TRUE(body.at("id").as_string().starts_with("cmpl-"));
  EXPECT_GT(body.at("created").as_int64(), 1'700'000'000);
  const json::value& choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "hello");
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_EQ(choice.at("matched_stop"), 256);
  EXPECT_TRUE(choice.at("logprobs").is_null());
  const json::value& usage = body.at("usage");
  EXPECT_EQ(usage.at("prompt_tokens"), 5);
  EXPECT_EQ(usage.at("completion_tokens"), 6);
  EXPECT_EQ(usage.at("total_tokens"), 11);
  EXPECT_EQ(usage.at("prompt_tokens_details").at("cached_tokens"), 1);
  EXPECT_EQ(body.at("metadata").at("weight_version"), "fake-1");
  EXPECT_EQ(body.at("metadata").at("seed"), "5");
  EXPECT_EQ(fixture.engine.seen()[0].max_new_tokens, 16);
}

TEST(Completions, OrdersChoicesByPromptThenSample) {
  ServerFixture fixture;
  const auto body = fixture.post(kCompletions, R"({"prompt":["a","b"],"n":2,"echo":true})").json();
  std::string texts;
  for (const json::value& choice : body.at("choices").get_array()) {
    texts += choice.at("text").as_string();
    texts += std::to_string(choice.at("index").as_int64());
  }
  EXPECT_EQ(texts, "aa0aa1bb2bb3");
  EXPECT_EQ(body.at("usage").at("prompt_tokens"), 2);
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 8);
}

TEST(Completions, EchoesWithLogprobsAsEvaluationHarnessesRead) {
  ServerFixture fixture;
  const auto body = fixture
                        .post(kCompletions,
                              R"({"prompt":[[97,98,99]],"echo":true,"logprobs":1,"max_tokens":1,
                                  "temperature":0,"seed":1234})")
                        .json();
  const json::value& choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "abca");
  const json::value& logprobs = choice.at("logprobs");
  EXPECT_EQ(logprobs.at("tokens"), (json::array{"a", "b", "c", "a"}));
  ASSERT_EQ(logprobs.at("token_logprobs").get_array().size(), 4u);
  EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null());
  EXPECT_EQ(logprobs.at("token_logprobs").at(1), -0.5);
  EXPECT_TRUE(logprobs.at("top_logprobs").at(0).is_null());
  EXPECT_EQ(logprobs.at("top_logprobs").at(1), (json::object{{"b", -0.25}}));
  const auto plain =
      fixture.post(kCompletions, R"({"prompt":"ab","logprobs":0,"max_tokens":2})").json();
  EXPECT_EQ(plain.at("choices").at(0).at("logprobs").at("tokens"), (json::array{"a", "b"}));
}

TEST(Completions, StreamsTheSameTextAsThePlainAnswer) {
  ServerFixture fixture;
  const std::string body = R"({"prompt":"an é, a stop; and","stop":[" a","; "],"echo":true)";
  const auto plain = fixture.post(kCompletions, body + "}").json();
  auto events =
      fixture
          .post(kCompletions, body + R"(,"stream":true,"stream_options":{"include_usage":true}})")
          .events();
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  const auto usage = json::parse(events.back());
  events.pop_back();
  EXPECT_TRUE(usage.at("choices").get_array().empty());
  EXPECT_EQ(usage.at("usage"), plain.at("usage"));
  std::string text;
  json::value finish;
  for (const std::string& event : events) {
    const auto value = json::parse(event);
    EXPECT_EQ(value.at("object"), "text_completion");
    EXPECT_TRUE(value.at("usage").is_null());
    text += value.at("choices").at(0).at("text").as_string();
    finish = value.at("choices").at(0).at("finish_reason");
  }
  EXPECT_EQ(text, plain.at("choices").at(0).at("text").as_string());
  EXPECT_EQ(text, "an é, a stop; andan é,");
  EXPECT_EQ(finish, "stop");
}

TEST(Completions, RefusesInOpenAisForm) {
  ServerFixture fixture;
  const auto reply = fixture.post(kCompletions, R"({"prompt":"a","top_p":7})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json(),
            (json::object{{"object", "error"},
                          {"message", "top_p: expected a number in (0, 1], found 7"},
                          {"type", "Bad Request"},
                          {"param", "top_p"},
                          {"code", 400}}));
  // Also of a stream, before it begins.
  EXPECT_EQ(fixture.post(kCompletions, R"({"prompt":"a","stream":true,"max_tokens":500})").status,
            400);
  fixture.engine.fail_requests({ErrorCode::Internal, "broken", {}});
  EXPECT_EQ(fixture.post(kCompletions, R"({"prompt":"a"})").status, 500);
}

TEST(Chat, RendersTheTemplateAndAnswersInOpenAisForm) {
  ServerFixture fixture;
  fixture.engine.set_script([](const std::vector<int32_t>& prompt) {
    return "<" + std::string(prompt.begin(), prompt.end()) + ">";
  });
  const auto body =
      fixture.post(kChat, R"({"model":"m","messages":[{"role":"user","content":"hi"}]})").json();
  EXPECT_EQ(body.at("object"), "chat.completion");
  const json::value& choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice.at("message").at("content"), "<user: hi\nassistant: >");
  EXPECT_TRUE(choice.at("message").at("tool_calls").is_null());
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_EQ(fixture.engine.seen()[0].max_new_tokens, test::kFakeContext - 20);
  const auto continued = fixture
                             .post(kChat,
                                   R"({"messages":[{"role":"user","content":"hi"},
                                       {"role":"assistant","content":"Yes,"}],
                                       "continue_final_message":true})")
                             .json();
  EXPECT_EQ(continued.at("choices").at(0).at("message").at("content"),
            "<user: hi\nassistant: Yes,>");
  const auto ids =
      fixture.post(kChat, R"({"messages":[{"role":"user","content":"x"}],"input_ids":[97,98]})")
          .json();
  EXPECT_EQ(ids.at("choices").at(0).at("message").at("content"), "<ab>");
}

TEST(Chat, StreamsRoleThenContentThenFinish) {
  ServerFixture fixture;
  fixture.engine.set_script([](const auto&) { return std::string("ok é done. STOP no"); });
  const std::string body =
      R"({"messages":[{"role":"user","content":"x"}],"n":2,"stop":"STOP","logprobs":true,
          "top_logprobs":2)";
  const auto plain = fixture.post(kChat, body + "}").json();
  auto events =
      fixture.post(kChat, body + R"(,"stream":true,"stream_options":{"include_usage":true}})")
          .events();
  ASSERT_EQ(events.back(), "[DONE]");
  events.pop_back();
  EXPECT_EQ(json::parse(events.back()).at("usage"), plain.at("usage"));
  events.pop_back();
  std::map<int64_t, std::string> texts;
  std::map<int64_t, json::array> logprobs;
  std::map<int64_t, json::value> finishes;
  for (const std::string& event : events) {
    const auto value = json::parse(event);
    EXPECT_EQ(value.at("object"), "chat.completion.chunk");
    const json::value& choice = value.at("choices").at(0);
    const int64_t index = choice.at("index").as_int64();
    const json::object& delta = choice.at("delta").as_object();
    if (!texts.contains(index)) {
      EXPECT_EQ(delta.at("role"), "assistant");
    }
    EXPECT_TRUE(finishes[index].is_null());
    finishes[index] = choice.at("finish_reason");
    texts[index] += delta.contains("content") ? delta.at("content").as_string() : "";
    if (choice.at("logprobs").is_object()) {
      for (const json::value& item : choice.at("logprobs").at("content").get_array()) {
        logprobs[index].push_back(item);
      }
    }
  }
  for (int64_t i = 0; i < 2; ++i) {
    const json::value& whole = plain.at("choices").at(static_cast<size_t>(i));
    EXPECT_EQ(texts[i], whole.at("message").at("content").as_string());
    EXPECT_EQ(texts[i], "ok é done. ");
    EXPECT_EQ(finishes[i], "stop");
    EXPECT_EQ(json::value(logprobs[i]), whole.at("logprobs").at("content"));
  }
  const json::value& first = plain.at("choices").at(0).at("logprobs").at("content").at(0);
  EXPECT_EQ(first.at("token"), "o");
  EXPECT_EQ(first.at("bytes"), (json::array{111}));
  EXPECT_EQ(first.at("top_logprobs").get_array().size(), 2u);
}

TEST(Chat, RefusesInWords) {
  ServerFixture fixture;
  const auto reply = fixture.post(kChat, R"({"messages":[{"role":"user"}]})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json().at("param"), "messages[0].content");
  const auto ids_only =
      ServerFixture({}, false).post(kChat, R"({"messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(ids_only.status, 400);
}

}  // namespace
}  // namespace nibble::server
