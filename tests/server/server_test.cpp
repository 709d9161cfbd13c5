// Routes, keys, health, information, the weight routes, drain.
#include "server/server.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "server/routes.h"
#include "server/server_fixture.h"

namespace nibble::server {
namespace {

using test::ServerFixture;

std::string read_docs(const char* path) {
  const std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Routes, AreAllListedInTheDocs) {
  const std::string docs = read_docs(NIBBLE_API_DOCS);
  ASSERT_FALSE(docs.empty());
  for (const Route& route : routes()) {
    std::string path(route.path);
    if (path.ends_with('*')) {
      path.back() = '{';
    }
    EXPECT_NE(docs.find("`" + path), std::string::npos) << route.path;
  }
}

TEST(Routes, AreExactlyThoseOfTheOpenApiDocument) {
  const auto document = boost::json::parse(read_docs(NIBBLE_OPENAPI));
  std::set<std::string> described;
  for (const auto& [path, operations] : document.at("paths").as_object()) {
    for (const auto& [method, operation] : operations.as_object()) {
      described.insert(std::string(method) + " " + std::string(path));
    }
  }
  std::set<std::string> served;
  for (const Route& route : routes()) {
    std::string path(route.path);
    if (path.ends_with('*')) {
      path.replace(path.size() - 1, 1, "{id}");
    }
    std::istringstream methods{std::string(route.methods)};
    for (std::string method; methods >> method;) {
      std::transform(method.begin(), method.end(), method.begin(), [](char c) {
        return static_cast<char>(c | 0x20);
      });
      served.insert(method + " " + path);
    }
  }
  EXPECT_EQ(described, served);
}

TEST(Routes, AnswerBadJsonWith400AndStayUp) {
  ServerFixture fixture;
  for (const Route& route : routes()) {
    if (route.methods.find("POST") == std::string_view::npos || route.path == "/flush_cache" ||
        route.path == "/continue_generation") {
      continue;
    }
    for (const char* body : {"{", "[1]", "\"x\"", "{\"a\":\xff}", "nul"}) {
      const auto reply = fixture.post(route.path, body);
      EXPECT_EQ(reply.status, 400) << route.path << " " << body;
      EXPECT_TRUE(reply.json().is_object()) << route.path << " " << reply.body;
    }
  }
  EXPECT_EQ(fixture.get("/health_generate").status, 200);
}

TEST(Routes, SayWhichMethodsTheyHave) {
  ServerFixture fixture;
  const auto reply = fixture.get("/generate");
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.header("Allow"), "POST, PUT, OPTIONS");
  EXPECT_EQ(test::http(fixture.port(), "HEAD", "/generate").status, 405);
  EXPECT_EQ(test::http(fixture.port(), "POST", "/health").header("Allow"), "GET, HEAD, OPTIONS");
  const auto options = test::http(fixture.port(), "OPTIONS", "/generate");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.header("Content-Length"), "");  // RFC 9110, section 8.6
  EXPECT_EQ(test::http(fixture.port(), "OPTIONS", "*").status, 204);
  EXPECT_EQ(test::http(fixture.port(), "GET", "*").status, 404);
  EXPECT_EQ(test::http(fixture.port(), "TRACE", "/health").status, 405);
  EXPECT_EQ(fixture.get("/v1/completions").json().at("code"), 405);
  EXPECT_EQ(fixture.get("/v1/completions").json().at("type"), "method_not_allowed");
  const auto missing = fixture.get("/v1/nothing");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(missing.json().at("message"), "no such path: /v1/nothing");
  EXPECT_EQ(fixture.get("/nothing").json().at("error").at("message"), "no such path: /nothing");
  EXPECT_EQ(fixture.get("/health/").status, 200);
  EXPECT_TRUE(fixture.get("/v1/%ff%fe").json().is_object());  // answers are always UTF-8
  EXPECT_TRUE(fixture.get("/v1/models/%c3").json().is_object());
}

TEST(Server, NeedsTheKeyWhereOneIsConfigured) {
  ServerConfig config;
  config.api_key = "secret";
  config.admin_api_key = "root";
  ServerFixture fixture(config);
  const auto get = [&](const char* path, const char* headers) {
    return test::http(fixture.port(), "GET", path, {}, headers).status;
  };
  EXPECT_EQ(get("/v1/models", ""), 401);
  EXPECT_EQ(get("/v1/models", "Authorization: Bearer secre\r\n"), 401);
  EXPECT_EQ(get("/v1/models", "Authorization: secret\r\n"), 401);
  EXPECT_EQ(get("/v1/models", "Authorization: Bearer secret\r\n"), 200);
  EXPECT_EQ(get("/v1/models", "Authorization: bearer secret\r\n"), 200);
  EXPECT_EQ(get("/v1/models", "Authorization: bearer Secret\r\n"), 401);
  EXPECT_EQ(get("/health", ""), 200);
  EXPECT_EQ(get("/flush_cache", "Authorization: Bearer secret\r\n"), 401);
  EXPECT_EQ(get("/flush_cache", "Authorization: Bearer root\r\n"), 200);
}

TEST(Server, WantsJsonMediaTypeUnderV1) {
  ServerFixture fixture;
  const auto reply = test::http(fixture.port(),
                                "POST",
                                "/v1/completions",
                                R"({"prompt":"a"})",
                                "Content-Type: text/plain\r\n");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json().at("param"), "Content-Type");
  EXPECT_EQ(
      test::http(
          fixture.port(), "POST", "/generate", R"({"text":"a"})", "Content-Type: text/plain\r\n")
          .status,
      200);
}

TEST(Health, GeneratesAToken) {
  ServerFixture fixture;
  EXPECT_EQ(fixture.get("/health_generate").status, 200);
  ASSERT_EQ(fixture.engine.seen().size(), 1u);
  EXPECT_EQ(fixture.engine.seen()[0].max_new_tokens, 1);
  EXPECT_EQ(fixture.get("/health").status, 200);
  EXPECT_EQ(fixture.engine.seen().size(), 1u);
}

TEST(Health, Answers503WhenNothingComesOut) {
  ServerConfig config;
  config.health_timeout_seconds = 0.3;
  ServerFixture fixture(config);
  fixture.engine.hold();
  EXPECT_EQ(fixture.get("/health_generate").status, 503);
  EXPECT_TRUE(test::eventually([&] { return fixture.engine.num_aborts() == 1; }));
  fixture.engine.release();
  EXPECT_EQ(fixture.get("/health_generate").status, 200);
}

TEST(Info, DescribesModelServerAndLoad) {
  ServerFixture fixture;
  const auto model = fixture.get("/get_model_info").json();
  EXPECT_EQ(model.at("model_path"), "/models/fake");
  EXPECT_EQ(model.at("is_generation"), true);
  EXPECT_EQ(model.at("architectures").at(0), "FakeForCausalLM");
  EXPECT_EQ(model.at("weight_version"), "fake-1");
  const auto info = fixture.get("/server_info").json();
  EXPECT_EQ(info.at("status"), "ready");
  EXPECT_EQ(info.at("max_total_num_tokens"), 4096);
  EXPECT_EQ(info.at("resolved_backends").at("decode_step"), "fake_step");
  EXPECT_EQ(info.at("internal_states").get_array().size(), 1u);
  const auto loads = fixture.get("/v1/loads?include=core").json();
  EXPECT_EQ(loads.at("loads").at(0).at("num_running_reqs"), 0);
  EXPECT_EQ(loads.at("loads").at(0).at("max_total_num_tokens"), 4096);
  EXPECT_EQ(fixture.get("/v1/loads?include=cores").status, 400);
  EXPECT_NE(fixture.get("/v1/loads?format=prometheus")
                .body.find("sglang_num_running_reqs{dp_rank=\"0\"} 0"),
            std::string::npos);
  EXPECT_NE(fixture.get("/").body.find("fake/model"), std::string::npos);
}

TEST(Models, ListTheServedNameOnly) {
  ServerFixture fixture;
  const auto list = fixture.get("/v1/models").json();
  EXPECT_EQ(list.at("data").at(0).at("id"), "fake/model");
  EXPECT_EQ(list.at("data").at(0).at("max_model_len"), test::kFakeContext);
  EXPECT_EQ(fixture.get("/v1/models/fake/model").json().at("id"), "fake/model");
  const auto missing = fixture.get("/v1/models/other");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(missing.json().at("error").at("code"), "model_not_found");
}

TEST(Tokenize, GoesThereAndBack) {
  ServerFixture fixture;
  const auto one = fixture.post("/tokenize", R"({"prompt":"ab<|end|>"})").json();
  EXPECT_EQ(one.at("tokens"), (boost::json::array{97, 98, 256}));
  EXPECT_EQ(one.at("count"), 3);
  const auto many = fixture.post("/v1/tokenize", R"({"prompt":["a","bc"]})").json();
  EXPECT_EQ(many.at("count"), (boost::json::array{1, 2}));
  const auto chat =
      fixture.post("/tokenize", R"({"messages":[{"role":"user","content":"x"}]})").json();
  EXPECT_EQ(chat.at("count"), std::string("user: x\nassistant: ").size());
  EXPECT_EQ(fixture.post("/tokenize", R"({"prompt":5})").status, 400);
  EXPECT_EQ(fixture.post("/tokenize", R"({})").status, 400);
  EXPECT_EQ(fixture.post("/detokenize", R"({"tokens":[97,256]})").json().at("text"), "a");
  EXPECT_EQ(fixture.post("/detokenize", R"({"tokens":[97,256],"skip_special_tokens":false})")
                .json()
                .at("text"),
            "a<|end|>");
  EXPECT_EQ(fixture.post("/detokenize", R"({"tokens":[[97],[98]]})").json().at("text").at(1), "b");
  EXPECT_EQ(fixture.post("/detokenize", R"({"tokens":["a"]})").status, 400);
  EXPECT_EQ(fixture.post("/detokenize", R"({"tokens":[100000]})").status, 400);
}

TEST(Weights, AreUpdatedPausedAndCheckedInUpstreamsForms) {
  ServerFixture fixture;
  EXPECT_EQ(fixture.post("/weights_checker", R"({"action":"compare"})").status, 400);
  EXPECT_EQ(fixture.post("/weights_checker", R"({"action":"snapshot"})").status, 200);
  EXPECT_EQ(fixture.post("/weights_checker", R"({"action":"compare"})").status, 200);

  const auto bad = fixture.post("/update_weights_from_disk", R"({"model_path":"/does/not/exist"})");
  EXPECT_EQ(bad.status, 400);
  EXPECT_EQ(bad.json().at("success"), false);
  EXPECT_TRUE(bad.json().at("message").as_string().starts_with("Failed to get weights iterator"));
  const auto broken = fixture.post("/update_weights_from_disk", R"({"model_path":"/"})").json();
  EXPECT_TRUE(broken.at("message").as_string().starts_with("Failed to update weights"));
  EXPECT_TRUE(broken.at("message").as_string().ends_with("The old weights go on serving."));
  EXPECT_EQ(fixture.get("/model_info").json().at("model_path"), "/models/fake");

  const auto good = fixture.post("/update_weights_from_disk",
                                 R"({"model_path":"/tmp","weight_version":"v7","running":"swap"})");
  EXPECT_EQ(good.status, 200);
  EXPECT_EQ(good.json().at("success"), true);
  EXPECT_EQ(good.json().at("num_paused_requests"), 0);
  EXPECT_EQ(good.json().at("message"),
            "Succeeded to update model weights. Weight version updated to v7.");
  EXPECT_EQ(fixture.get("/model_info").json().at("model_path"), "/tmp");
  EXPECT_EQ(fixture.post("/weights_checker", R"({"action":"compare"})").status, 400);
  const auto sums = fixture.post("/weights_checker", "").json();
  EXPECT_EQ(sums.at("ranks").at(0).at("checksums").at("model.weight"), "v7");
  EXPECT_EQ(fixture.post("/weights_checker", R"({"action":"reset_tensors"})").status, 400);

  EXPECT_EQ(fixture.post("/pause_generation", R"({"mode":"in_place"})").json().at("status"), "ok");
  EXPECT_EQ(fixture.post("/pause_generation", "{}").status, 400);
  EXPECT_EQ(fixture.post("/pause_generation", R"({"mode":"later"})").status, 400);
  EXPECT_EQ(fixture.post("/continue_generation", "{}").json().at("status"), "ok");
  EXPECT_EQ(fixture.post("/update_weight_version", R"({"new_version":"v8"})").json().at("success"),
            true);
  EXPECT_EQ(fixture.post("/release_memory_occupation", "{}").body, "null");
  EXPECT_EQ(fixture.post("/release_memory_occupation", R"({"tags":["disk"]})").status, 400);
  const auto resume = fixture.post("/resume_memory_occupation", R"({"tags":["weights"]})");
  EXPECT_EQ(resume.status, 400);
  EXPECT_EQ(resume.json().at("error").at("message"), "nothing is released");
  EXPECT_EQ(fixture.post("/flush_cache", "").status, 200);
  EXPECT_EQ(fixture.post("/flush_cache?timeout=x", "").status, 400);
}

TEST(Weights, AFailedUpdateInPlaceDoesNotClaimThatTheOldOnesServe) {
  ServerFixture fixture;
  const auto failed =
      fixture.post("/update_weights_from_disk", R"({"model_path":"/","allow_in_place":true})");
  EXPECT_EQ(failed.status, 400);
  EXPECT_TRUE(failed.json().at("message").as_string().ends_with("config.json in the directory"));
}

TEST(Server, FinishesRunningRequestsWhileDrainingAndRefusesNewOnes) {
  ServerFixture fixture;
  fixture.engine.hold();
  test::HttpClient client(fixture.port());
  client.send("POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n{\"text\":\"abc\"}");
  ASSERT_TRUE(test::eventually([&] { return fixture.engine.seen().size() == 1; }));
  std::thread drain([&] { fixture.server->drain(10); });
  ASSERT_TRUE(test::eventually([&] { return fixture.get("/health").status == 0; }));
  fixture.engine.release();
  EXPECT_EQ(client.read_reply().json().at("text"), "abc");
  drain.join();
  EXPECT_EQ(fixture.engine.num_aborts(), 0u);
}

TEST(Server, AbortsWhatIsLeftWhenTheTimeToDrainIsOver) {
  ServerFixture fixture;
  fixture.engine.hold();
  test::HttpClient client(fixture.port());
  client.send("POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n{\"text\":\"abc\"}");
  ASSERT_TRUE(test::eventually([&] { return fixture.engine.seen().size() == 1; }));
  fixture.server->drain(0.05);
  EXPECT_EQ(client.read_reply().json().at("meta_info").at("finish_reason").at("type"), "abort");
  EXPECT_EQ(fixture.engine.num_aborts(), 1u);
}

}  // namespace
}  // namespace nibble::server
