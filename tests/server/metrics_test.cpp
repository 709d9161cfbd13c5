#include "server/metrics.h"

#include <gtest/gtest.h>

#include "server/server_fixture.h"

namespace nibble::server {
namespace {

TEST(Metrics, CountWhatWasServedUnderUpstreamsNames) {
  test::ServerFixture fixture;
  EXPECT_EQ(fixture.post("/generate", R"({"text":"abc"})").status, 200);
  const auto reply = fixture.get("/metrics");
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.header("Content-Type").starts_with("text/plain"));
  for (const char* line : {"sglang:prompt_tokens_total{",
                           "sglang:generation_tokens_total{",
                           "sglang:time_to_first_token_seconds_bucket{",
                           "sglang:inter_token_latency_seconds_count{",
                           "sglang:http_requests_total{endpoint=\"/generate\"} 1"}) {
    EXPECT_NE(reply.body.find(line), std::string::npos) << line;
  }
  EXPECT_NE(reply.body.find("model_name=\"fake/model\""), std::string::npos);
}

TEST(Metrics, TellAbortedFromFinished) {
  Metrics metrics("m");
  metrics.observe_finished({5, 1, 3, 0.1, 0.4, false});
  metrics.observe_finished({7, 0, 0, -1, 0.2, true});
  engine::Load load;
  load.running = 3;
  const std::string text = metrics.render(load);
  const std::string labels = R"({engine_type="unified",model_name="m",tp_rank="0"} )";
  for (const std::string& line : {"sglang:num_requests_total" + labels + "2",
                                  "sglang:num_aborted_requests_total" + labels + "1",
                                  "sglang:prompt_tokens_total" + labels + "12",
                                  "sglang:cached_tokens_total" + labels + "1",
                                  "sglang:generation_tokens_total" + labels + "3",
                                  "sglang:time_to_first_token_seconds_count" + labels + "1",
                                  "sglang:num_running_reqs" + labels + "3"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

}  // namespace
}  // namespace nibble::server
