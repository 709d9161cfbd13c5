// POST /generate against the fake engine, whose answer is the prompt again.
#include <thread>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "server/server_fixture.h"

namespace nibble::server {
namespace {

namespace json = boost::json;
using test::ServerFixture;

json::value finish_of(const json::value& answer) {
  return answer.at("meta_info").at("finish_reason");
}

TEST(Generate, AnswersTextAndIdsAlike) {
  ServerFixture fixture;
  const auto text = fixture.post("/generate", R"({"text":"héllo"})").json();
  EXPECT_EQ(text.at("text"), "héllo");
  EXPECT_EQ(text.at("output_ids").get_array().size(), 7u);  // with the end token
  const json::value& meta = text.at("meta_info");
  EXPECT_EQ(meta.at("prompt_tokens"), 6);
  EXPECT_EQ(meta.at("completion_tokens"), 7);
  EXPECT_EQ(meta.at("cached_tokens"), 1);
  EXPECT_EQ(meta.at("weight_version"), "fake-1");
  EXPECT_EQ(finish_of(text), (json::object{{"type", "stop"}, {"matched", 256}}));
  const auto ids = fixture.post("/generate", R"({"input_ids":[104,105]})").json();
  EXPECT_EQ(ids.at("text"), "hi");
}

TEST(Generate, CutsAtStopStringsAndTellsTheEngine) {
  ServerFixture fixture;
  const auto answer =
      fixture
          .post("/generate",
                R"({"text":"one, two; three","sampling_params":{"stop":["; t","zz"]}})")
          .json();
  EXPECT_EQ(answer.at("text"), "one, two");
  EXPECT_EQ(finish_of(answer), (json::object{{"type", "stop"}, {"matched", "; t"}}));
  EXPECT_EQ(answer.at("output_ids").get_array().size(), 11u);
  EXPECT_TRUE(test::eventually([&] { return fixture.engine.load().running == 0; }));
  const auto kept =
      fixture
          .post("/generate", R"({"text":"a;b","sampling_params":{"stop":";","no_stop_trim":true}})")
          .json();
  EXPECT_EQ(kept.at("text"), "a;");
}

TEST(Generate, EndsAtTokensAndLengths) {
  ServerFixture fixture;
  const auto token =
      fixture.post("/generate", R"({"text":"abc","sampling_params":{"stop_token_ids":[98]}})")
          .json();
  EXPECT_EQ(token.at("text"), "a");
  EXPECT_EQ(finish_of(token).at("matched"), 98);
  const auto length =
      fixture.post("/generate", R"({"text":"abc","sampling_params":{"max_new_tokens":2}})").json();
  EXPECT_EQ(length.at("text"), "ab");
  EXPECT_EQ(finish_of(length), (json::object{{"type", "length"}, {"length", 2}}));
  const auto none =
      fixture.post("/generate", R"({"text":"abc","sampling_params":{"max_new_tokens":0}})").json();
  EXPECT_EQ(none.at("text"), "");
  const auto special = fixture
                           .post("/generate",
                                 R"({"text":"ab","sampling_params":{"ignore_eos":true,
                                     "max_new_tokens":3,"skip_special_tokens":false}})")
                           .json();
  EXPECT_EQ(special.at("text"), "ab<|end|>");
}

TEST(Generate, EndsAtTheTemplatesEndTokenUnlessToldNotTo) {
  const auto with_end = [](const char* eos) {
    ServerFixture other({}, true, text::ChatTemplate::parse("x", "", eos).value());
    return other.post("/generate", R"({"text":"abc"})").json();
  };
  ServerFixture fixture({}, true, text::ChatTemplate::parse("x", "", "b").value());
  EXPECT_EQ(fixture.post("/generate", R"({"text":"abc"})").json().at("text"), "a");
  EXPECT_EQ(fixture.engine.seen().back().stop_token_ids, (std::vector<int32_t>{98}));
  const auto ignored =
      fixture
          .post("/generate",
                R"({"text":"abc","sampling_params":{"ignore_eos":true,"max_new_tokens":3}})")
          .json();
  EXPECT_EQ(ignored.at("text"), "abc");
  for (const char* none : {"", "ab"}) {  // no end token, and text that is no token
    EXPECT_EQ(with_end(none).at("text"), "abc") << none;
  }
}

TEST(Generate, StreamsTheWholeTextSoFarAndEndsLikeThePlainAnswer) {
  ServerFixture fixture;
  const std::string body = R"({"text":"añb;c","sampling_params":{"stop":";","sampling_seed":3})";
  const auto plain = fixture.post("/generate", body + "}").json();
  const auto reply = fixture.post("/generate", body + R"(,"stream":true})");
  EXPECT_EQ(reply.header("Content-Type"), "text/event-stream; charset=utf-8");
  auto events = reply.events();
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  std::string before;
  for (const std::string& event : events) {
    const auto value = json::parse(event);
    const std::string text(value.at("text").as_string());
    EXPECT_TRUE(text.starts_with(before)) << text;
    EXPECT_FALSE(text.empty());
    before = text;
  }
  const auto last = json::parse(events.back());
  EXPECT_EQ(last.at("text"), plain.at("text"));
  EXPECT_EQ(last.at("output_ids"), plain.at("output_ids"));
  EXPECT_EQ(finish_of(last), finish_of(plain));
}

TEST(Generate, StreamsDeltasWhenToldTo) {
  ServerConfig config;
  config.incremental_streaming = true;
  config.stream_interval = 2;
  ServerFixture fixture(config);
  auto events = fixture.post("/generate", R"({"text":"abcdef","stream":true})").events();
  events.pop_back();
  std::string text;
  size_t num_ids = 0;
  for (const std::string& event : events) {
    const auto value = json::parse(event);
    text += value.at("text").as_string();
    num_ids += value.at("output_ids").get_array().size();
  }
  EXPECT_EQ(text, "abcdef");
  EXPECT_EQ(num_ids, 7u);
  EXPECT_LE(events.size(), 5u);
}

TEST(Generate, AnswersBatchesAndSamplesInOrder) {
  ServerFixture fixture;
  const auto batch =
      fixture.post("/generate", R"({"text":["a","bb"],"sampling_params":[{"n":2},{"n":2}]})")
          .json();
  ASSERT_EQ(batch.get_array().size(), 4u);
  EXPECT_EQ(batch.at(0).at("text"), "a");
  EXPECT_EQ(batch.at(3).at("text"), "bb");
  EXPECT_NE(batch.at(0).at("meta_info").at("seed"), batch.at(1).at("meta_info").at("seed"));
  auto events = fixture.post("/generate", R"({"input_ids":[[97],[98]],"stream":true})").events();
  events.pop_back();
  std::map<int64_t, std::string> texts;
  for (const std::string& event : events) {
    const auto value = json::parse(event);
    texts[value.at("index").as_int64()] = std::string(value.at("text").as_string());
  }
  EXPECT_EQ(texts, (std::map<int64_t, std::string>{{0, "a"}, {1, "b"}}));
}

TEST(Generate, ReturnsLogprobsInUpstreamsForm) {
  ServerFixture fixture;
  const auto meta = fixture
                        .post("/generate",
                              R"({"text":"abc","return_logprob":true,"logprob_start_len":0,
                                  "top_logprobs_num":2,"token_ids_logprob":[5],
                                  "return_text_in_logprobs":true})")
                        .json()
                        .at("meta_info");
  const json::value& input = meta.at("input_token_logprobs");
  ASSERT_EQ(input.get_array().size(), 3u);
  EXPECT_TRUE(input.at(0).at(0).is_null());
  EXPECT_EQ(input.at(1), (json::array{-0.5, 98, "b"}));
  const json::value& output = meta.at("output_token_logprobs");
  ASSERT_EQ(output.get_array().size(), 4u);
  EXPECT_EQ(output.at(0), (json::array{-3.5, 97, "a"}));
  EXPECT_TRUE(meta.at("input_top_logprobs").at(0).is_null());
  EXPECT_EQ(meta.at("output_top_logprobs").at(0).get_array().size(), 2u);
  EXPECT_EQ(meta.at("output_token_ids_logprobs").at(0).at(0).at(1), 5);
  const auto tail =
      fixture.post("/generate", R"({"text":"abc","return_logprob":true,"logprob_start_len":2})")
          .json()
          .at("meta_info");
  EXPECT_EQ(tail.at("input_token_logprobs").get_array().size(), 1u);
  EXPECT_EQ(tail.at("input_token_logprobs").at(0).at(1), 99);
  const auto none =
      fixture.post("/generate", R"({"text":"abc","return_logprob":true})").json().at("meta_info");
  EXPECT_TRUE(none.at("input_token_logprobs").get_array().empty());
  EXPECT_EQ(
      fixture.post("/generate", R"({"text":"abc","return_logprob":true,"logprob_start_len":4})")
          .status,
      400);
}

TEST(Generate, BoundsTheAlternativesOfAllPromptsTogether) {
  ServerFixture fixture;
  const auto status_of = [&](int n) {
    return fixture
        .post("/generate",
              R"({"text":")" + std::string(150, 'a') +
                  R"(","return_logprob":true,"logprob_start_len":0,"top_logprobs_num":260,)"
                  R"("sampling_params":{"max_new_tokens":1,"n":)" +
                  std::to_string(n) + "}}")
        .status;
  };
  EXPECT_EQ(status_of(1), 200);
  EXPECT_EQ(status_of(200), 413);
}

TEST(Generate, GivesSeedsAsAsked) {
  ServerConfig config;
  config.random_seed = 1;
  ServerFixture fixture(config);
  const auto seed = [&](const char* params) {
    return fixture
        .post("/generate", std::string(R"({"text":"a","sampling_params":)") + params + "}")
        .json()
        .at("meta_info")
        .at("seed");
  };
  EXPECT_EQ(seed(R"({"sampling_seed":7})"), 7);
  const auto first = seed("{}");
  EXPECT_NE(first, seed("{}"));
  EXPECT_EQ(first.as_int64(), static_cast<int64_t>(fixture.engine.seen()[1].seed));
  ServerConfig deterministic;
  deterministic.deterministic_seeds = true;
  ServerFixture fixed(deterministic);
  EXPECT_EQ(fixed.post("/generate", R"({"text":"a"})").json().at("meta_info").at("seed"), 42);
}

TEST(Generate, RefusesWhatDoesNotFitTheContext) {
  ServerFixture fixture;
  const std::string full(test::kFakeContext, 'x');
  const auto prompt = fixture.post("/generate", R"({"text":")" + full + R"("})");
  EXPECT_EQ(prompt.status, 400);
  EXPECT_NE(prompt.body.find("longer than the model's context length"), std::string::npos);
  const auto both =
      fixture.post("/generate", R"({"text":"abc","sampling_params":{"max_new_tokens":198}})");
  EXPECT_EQ(both.status, 400);
  EXPECT_NE(both.body.find("Requested token count exceeds the model's maximum context length"),
            std::string::npos);
  const auto rest =
      fixture.post("/generate", R"({"text":"abc","sampling_params":{"max_new_tokens":null}})");
  EXPECT_EQ(rest.status, 200);
  EXPECT_EQ(fixture.engine.seen().back().max_new_tokens, test::kFakeContext - 3);
  EXPECT_EQ(fixture.post("/generate", R"({"text":""})").status, 400);
}

TEST(Generate, TakesTheIdsWhereTextIsThereTooAndRefusesAnotherNumberOfTexts) {
  ServerFixture fixture;
  const auto both = fixture.post("/generate", R"({"text":"xyz","input_ids":[104,105]})").json();
  EXPECT_EQ(both.at("text"), "hi");
  const auto batch =
      fixture.post("/generate", R"({"text":["x","y"],"input_ids":[[104],[105]]})").json();
  EXPECT_EQ(batch.at(1).at("text"), "i");
  for (const char* body : {R"({"text":["x"],"input_ids":[104]})",
                           R"({"text":"x","input_ids":[[104]]})",
                           R"({"text":["x"],"input_ids":[[104],[105]]})",
                           R"({"text":[104],"input_ids":[104]})",
                           R"({"text":7,"input_ids":[104]})"}) {
    const auto reply = fixture.post("/generate", body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_NE(reply.body.find("send one of them"), std::string::npos) << reply.body;
  }
  const auto embeds =
      fixture.post("/generate", R"({"text":"x","input_ids":[104],"input_embeds":[[0.5]]})");
  EXPECT_EQ(embeds.status, 400);
  EXPECT_EQ(embeds.json().at("param"), "input_embeds");
}

TEST(Generate, AnswersEveryErrorInBothFormsOfUpstream) {
  ServerConfig config;
  config.api_key = "secret";
  ServerFixture fixture(config);
  const auto post = [&](const char* body, const char* headers) {
    return test::http(fixture.port(), "POST", "/generate", body, headers);
  };
  const auto expect_both = [](const test::HttpReply& reply, int status) {
    EXPECT_EQ(reply.status, status);
    const json::value body = reply.json();
    ASSERT_TRUE(body.is_object()) << reply.body;
    EXPECT_EQ(body.at("object"), "error");
    EXPECT_EQ(body.at("code"), status);
    EXPECT_FALSE(body.at("message").as_string().empty());
    EXPECT_EQ(body.at("error").at("message"), body.at("message"));
  };
  const char* key = "Authorization: Bearer secret\r\n";
  expect_both(post(R"({"text":"a"})", ""), 401);
  expect_both(post(R"({"text":"a")", key), 400);
  expect_both(post(R"({"text":""})", key), 400);
  expect_both(test::http(fixture.port(), "DELETE", "/generate", "", key), 405);
  fixture.engine.fail_requests({ErrorCode::Overloaded, "the queue is full", {}});
  expect_both(post(R"({"text":"a"})", key), 503);
  fixture.engine.fail_requests({ErrorCode::Internal, "lost", {}});
  expect_both(post(R"({"text":"a"})", key), 500);
  const auto openai =  // under /v1: flat alone
      test::http(fixture.port(), "POST", "/v1/completions", "{}", "Content-Type: text/plain\r\n");
  EXPECT_EQ(openai.status, 401);
  EXPECT_FALSE(openai.json().as_object().contains("error"));
}

TEST(Generate, SendsErrorsOfStreamsAsEvents) {
  ServerFixture fixture;
  const auto late = fixture.post(
      "/generate", R"({"text":"abc","stream":true,"sampling_params":{"max_new_tokens":198}})");
  EXPECT_EQ(late.status, 200);
  const auto events = late.events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(json::parse(events[0]).at("error").at("code"), 400);
  EXPECT_EQ(events[1], "[DONE]");
  fixture.engine.fail_requests({ErrorCode::Overloaded, "the queue is full", {}});
  EXPECT_EQ(fixture.post("/generate", R"({"text":"abc"})").status, 503);
  const auto failed = fixture.post("/generate", R"({"text":"abc","stream":true})").events();
  EXPECT_EQ(json::parse(failed[0]).at("error").at("code"), 503);
}

TEST(Generate, AbortsWhenTheClientGoesAway) {
  ServerFixture fixture;
  fixture.engine.hold();
  for (const char* stream : {"true", "false"}) {
    const size_t before = fixture.engine.num_aborts();
    const size_t seen = fixture.engine.seen().size();
    test::HttpClient client(fixture.port());
    const std::string body = std::string(R"({"text":["abc","def"],"stream":)") + stream + "}";
    client.send("POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
    ASSERT_TRUE(test::eventually([&] { return fixture.engine.seen().size() == seen + 2; }));
    client.close();
    EXPECT_TRUE(test::eventually([&] { return fixture.engine.num_aborts() == before + 2; }));
  }
  EXPECT_TRUE(test::eventually([&] { return fixture.server->context().live.size() == 0; }));
}

TEST(Generate, AbortsByIdPrefixAndRefusesDuplicateIds) {
  ServerFixture fixture;
  fixture.engine.hold();
  json::value first;
  std::thread waiting(
      [&] { first = fixture.post("/generate", R"({"text":["abc","d"],"rid":"job"})").json(); });
  ASSERT_TRUE(test::eventually([&] { return fixture.engine.seen().size() == 2; }));
  const auto duplicate = fixture.post("/generate", R"({"text":"abc","rid":"job_1"})");
  EXPECT_EQ(duplicate.status, 400);
  EXPECT_NE(duplicate.body.find("Duplicate request ID"), std::string::npos);
  EXPECT_EQ(fixture.post("/generate", R"({"text":["a","b"],"rid":["x","x"]})").status, 400);
  EXPECT_EQ(fixture.post("/abort_request", R"({"rid":"other"})").status, 200);
  EXPECT_EQ(fixture.post("/abort_request", R"({"rid":""})").status, 200);
  EXPECT_EQ(fixture.engine.num_aborts(), 0u);
  EXPECT_EQ(fixture.post("/abort_request", R"({"rid":"job"})").status, 200);
  waiting.join();
  EXPECT_EQ(finish_of(first.at(0)).at("type"), "abort");
  EXPECT_EQ(first.at(1).at("meta_info").at("id"), "job_1");
  fixture.engine.release();
  EXPECT_EQ(fixture.post("/generate", R"({"text":"abc","rid":"job_1"})").status, 200);
}

TEST(Generate, MergesEventsForASlowClientAndLosesNothing) {
  ServerFixture fixture;
  const std::string long_text(150, 'x');
  std::vector<std::thread> clients;
  clients.reserve(16);
  std::atomic<int> good{0};
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&] {
      const auto events = fixture
                              .post("/generate",
                                    R"({"text":")" + long_text +
                                        R"(","stream":true,"sampling_params":{"max_new_tokens":49,
                                        "ignore_eos":true}})")
                              .events();
      if (events.size() >= 2 && events.back() == "[DONE]" &&
          json::parse(events[events.size() - 2]).at("text") ==
              json::value(long_text.substr(0, 49))) {
        ++good;
      }
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  EXPECT_EQ(good, 16);
}

TEST(Generate, ServesIdsWithoutATokenizer) {
  ServerFixture fixture({}, false);
  const auto answer = fixture.post("/generate", R"({"input_ids":[104,105]})").json();
  EXPECT_EQ(answer.at("text"), "");
  EXPECT_EQ(answer.at("output_ids"), (json::array{104, 105, 256}));
  EXPECT_EQ(fixture.post("/generate", R"({"text":"hi"})").status, 400);
  EXPECT_EQ(fixture.post("/tokenize", R"({"prompt":"hi"})").status, 400);
  const auto events =
      fixture.post("/generate", R"({"input_ids":[104,105],"stream":true})").events();
  EXPECT_EQ(events.size(), 4u);
}

}  // namespace
}  // namespace nibble::server
