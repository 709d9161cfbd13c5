// Bad requests to a server with a real engine: each with its exact status and words, and after each
// the server answers a good request with the same bits as before. The table is the specification of
// the messages.
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "server/http_client.h"
#include "server/server_fixture.h"
#include "support/data_dir.h"
#include "support/engine_harness.h"

namespace nibble::server {
namespace {

namespace json = boost::json;

constexpr const char* kCompletions = "/v1/completions";
constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kGenerate = "/generate";

struct Row {
  const char* path;
  std::string body;
  int status;
  const char* message;
};

std::string repeat(std::string_view text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) {
    all += text;
  }
  return all;
}

// {"prompt": "a", FIELD}
std::string with(const std::string& field) { return R"({"prompt":"a",)" + field + "}"; }
// {"messages": [{"role": "user", "content": "x"}], FIELD}
std::string chat(const std::string& field) {
  return R"({"messages":[{"role":"user","content":"x"}],)" + field + "}";
}
std::string say(const std::string& message) { return R"({"messages":[)" + message + "]}"; }

class BadRequests : public testing::Test {
 protected:
  BadRequests()
      : engine_(test::start_engine(test::tiny_config(test::data_path("golden/llama-nvfp4")))),
        text_{test::make_byte_tokenizer(), test::make_plain_template()} {
    ServerConfig config;
    config.http.max_body_bytes = 1 << 20;
    auto started = Server::start(std::move(config), *engine_, &text_);
    EXPECT_TRUE(started.has_value());
    server_ = std::move(*started);
    before_ = good_answer();
    EXPECT_NE(before_, "");
  }

  test::HttpReply post(const char* path, const std::string& body) const {
    return test::http(server_->port(), "POST", path, body, "Content-Type: application/json\r\n");
  }
  // Ids and the bits of all logprobs, as text.
  std::string good_answer() const {
    const auto reply = post(kGenerate,
                            R"({"input_ids":[5,9,77,300],"return_logprob":true,
                                "logprob_start_len":0,"sampling_params":{"max_new_tokens":6,
                                "ignore_eos":true,"temperature":0.8,"sampling_seed":3}})");
    if (reply.status != 200) {
      return "";
    }
    const json::value answer = reply.json();
    const json::value& meta = answer.at("meta_info");
    return json::serialize(json::array{answer.at("output_ids"),
                                       meta.at("input_token_logprobs"),
                                       meta.at("output_token_logprobs")});
  }
  void expect_refusals(const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      const auto reply = post(row.path, row.body);
      EXPECT_EQ(reply.status, row.status) << row.body.substr(0, 200);
      const json::value body = reply.json();
      ASSERT_TRUE(body.is_object()) << row.body.substr(0, 200) << "\n" << reply.body;
      const json::object& fields = body.get_object();
      const json::value* inner = fields.if_contains("error");
      const json::value& message = inner != nullptr ? inner->at("message") : fields.at("message");
      EXPECT_EQ(std::string(message.as_string()), row.message) << row.body.substr(0, 200);
      EXPECT_EQ(good_answer(), before_) << "after " << row.body.substr(0, 200);
    }
  }

  std::unique_ptr<engine::Engine> engine_;
  TextModel text_;
  std::unique_ptr<Server> server_;
  std::string before_;
};

// clang-format off
TEST_F(BadRequests, ThatAreNotJson) {
  const std::string deep = R"({"prompt":)" + repeat("[", 20000) + repeat("]", 20000) + "}";
  expect_refusals({
      {kCompletions, "", 400, "body: not valid JSON: incomplete JSON at byte 0"},
      {kCompletions, "{", 400, "body: not valid JSON: incomplete JSON at byte 1"},
      {kCompletions, "nul", 400, "body: not valid JSON: incomplete JSON at byte 3"},
      {kCompletions, "{'prompt': 'a'}", 400, "body: not valid JSON: syntax error at byte 1"},
      {kCompletions, R"({"prompt":"a"} and more)", 400, "body: not valid JSON: extra text after the value at byte 15"},
      {kCompletions, std::string("{\"prompt\":\"a\"\0}", 15), 400, "body: not valid JSON: syntax error at byte 13"},
      {kCompletions, "{\"prompt\":\"\xff\"}", 400, "body: not valid JSON: syntax error at byte 11"},
      {kCompletions, "{\"prompt\":\"\xc3\x28\"}", 400, "body: not valid JSON: syntax error at byte 11"},
      {kCompletions, "{\"prompt\":\"\\ud800\"}", 400, "body: not valid JSON: syntax error at byte 17"},
      {kCompletions, R"({"prompt":"a","prompt":"b)", 400, "body: not valid JSON: incomplete JSON at byte 25"},
      {kCompletions, "[]", 400, "body: expected a JSON object, found an array"},
      {kCompletions, "7", 400, "body: expected a JSON object, found an integer"},
      {kCompletions, deep, 400, "body: not valid JSON: too deep at byte 73"},
      {kChat, deep, 400, "body: not valid JSON: too deep at byte 73"},
      {kGenerate, deep, 400, "body: not valid JSON: too deep at byte 73"},
      {kCompletions, repeat("[", 20000), 400, "body: not valid JSON: too deep at byte 64"},
      {kCompletions, R"({"prompt":")" + repeat("a", 1 << 20) + "\"}", 413, "the body is longer than 1048576 bytes"},
  });
}

TEST_F(BadRequests, WithWrongPrompts) {
  expect_refusals({
      {kCompletions, "{}", 400, "prompt: required but missing"},
      {kCompletions, R"({"prompt":null})", 400, "prompt: required but missing"},
      {kCompletions, R"({"prompt":{}})", 400, "prompt: expected a string, a list of strings, a list of token ids or a list of those, found an object"},
      {kCompletions, R"({"prompt":""})", 400, "prompt: must not be empty"},
      {kCompletions, R"({"prompt":[]})", 400, "prompt: must not be empty"},
      {kCompletions, R"({"prompt":[[]]})", 400, "prompt[0]: must not be empty"},
      {kCompletions, R"({"prompt":["a",""]})", 400, "prompt[1]: must not be empty"},
      {kCompletions, R"({"prompt":["a",[1]]})", 400, "prompt[1]: expected a string, found an array"},
      {kCompletions, R"({"prompt":[1,"a"]})", 400, "prompt[1]: expected a token id, found a string"},
      {kCompletions, R"({"prompt":[1.5]})", 400, "prompt[0]: expected a token id, found a number"},
      {kCompletions, R"({"prompt":[-1]})", 400, "prompt[0]: token id -1 is out-of-vocabulary, which has 512 tokens"},
      {kCompletions, R"({"prompt":[512]})", 400, "prompt[0]: token id 512 is out-of-vocabulary, which has 512 tokens"},
      {kCompletions, R"({"prompt":[1000000000000000000000000000000]})", 400, "prompt[0]: expected a token id, found a number"},
      {kCompletions, R"({"prompt":")" + repeat("a", 100000) + "\"}", 400, "prompt: the input (100000 tokens) is longer than the model's context length (2048 tokens)"},
      {kCompletions, R"({"prompt":[)" + repeat("1,", 100000) + "1]}", 400, "prompt: the input (100001 tokens) is longer than the model's context length (2048 tokens)"},
      {kGenerate, "{}", 400, "one of text and input_ids is required"},
      {kGenerate, R"({"text":""})", 400, "text: must not be empty"},
      {kGenerate, R"({"input_ids":[[1],[]]})", 400, "input_ids[1]: must not be empty"},
      {kGenerate, R"({"text":"a","image_data":"x"})", 400, "image_data: not supported by this server"},
  });
}

TEST_F(BadRequests, WithWrongSampling) {
  expect_refusals({
      {kCompletions, with(R"("max_tokens":0)"), 400, "max_tokens: expected an integer in [1, 2147483647], found 0"},
      {kCompletions, with(R"("max_tokens":-1)"), 400, "max_tokens: expected an integer in [1, 2147483647], found -1"},
      {kCompletions, with(R"("max_tokens":"5")"), 400, "max_tokens: expected an integer, found a string"},
      {kCompletions, with(R"("max_tokens":1e30)"), 400, "max_tokens: expected an integer, found a number"},
      {kCompletions, with(R"("max_tokens":2147483647)"), 400, "prompt: Requested token count exceeds the model's maximum context length of 2048 tokens: 1 of the input and 2147483647 of the answer"},
      {kCompletions, with(R"("max_tokens":99999999999999999999)"), 400, "max_tokens: expected an integer, found a number"},
      {kCompletions, with(R"("temperature":-1)"), 400, "temperature: expected a number in [0, 3.4028234663852886e+38], found -1"},
      {kCompletions, with(R"("temperature":1e400)"), 400, "temperature: expected a number in [0, 3.4028234663852886e+38], found Infinity"},
      {kCompletions, with(R"("temperature":NaN)"), 400, "temperature: expected a number in [0, 3.4028234663852886e+38], found NaN"},
      {kCompletions, with(R"("temperature":[0])"), 400, "temperature: expected a number, found an array"},
      {kCompletions, with(R"("top_p":0)"), 400, "top_p: expected a number in (0, 1], found 0"},
      {kCompletions, with(R"("top_k":0)"), 400, "top_k: expected -1 (all) or at least 1, found 0"},
      {kCompletions, with(R"("min_p":2)"), 400, "min_p: expected a number in [0, 1], found 2"},
      {kCompletions, with(R"("n":0)"), 400, "n: expected an integer in [1, 1024], found 0"},
      {kCompletions, with(R"("n":100000)"), 400, "n: expected an integer in [1, 1024], found 100000"},
      {kCompletions, with(R"("stop":5)"), 400, "stop: expected a string, found an integer"},
      {kCompletions, with(R"("stop":[")" + repeat("x", 5000) + "\"]"), 400, "stop: a stop string has 5000 bytes; at most 4096 are accepted"},
      {kCompletions, with(R"("stop":["x")" + repeat(",\"x\"", 200) + "]"), 400, "stop: expected at most 128 stop strings, found 201"},
      {kCompletions, with(R"("stop_token_ids":[512])"), 400, "stop_token_ids[0]: token id 512 is out-of-vocabulary, which has 512 tokens"},
      {kCompletions, with(R"("logit_bias":{"x":1})"), 400, "logit_bias: expected token ids as keys, found 'x'"},
      {kCompletions, with(R"("logit_bias":{"512":1})"), 400, "logit_bias: token id 512 is outside the vocabulary of 512"},
      {kCompletions, with(R"("logit_bias":{"1":1e9})"), 400, "logit_bias.1: expected a number in [-1e+06, 1e+06], found 1e+09"},
      {kCompletions, with(R"("logit_bias":[1])"), 400, "logit_bias: expected an object, found an array"},
      {kCompletions, with(R"("frequency_penalty":9)"), 400, "frequency_penalty: expected a number in [-2, 2], found 9"},
      {kCompletions, with(R"("repetition_penalty":0)"), 400, "repetition_penalty: expected a number in (0, 2], found 0"},
      {kCompletions, with(R"("seed":1.5)"), 400, "seed: expected an integer, found a number"},
      {kCompletions, with(R"("logprobs":-1)"), 400, "logprobs: expected an integer in [0, 512], found -1"},
      {kCompletions, with(R"("logprobs":513)"), 400, "logprobs: expected an integer in [0, 512], found 513"},
      {kCompletions, with(R"("echo":1)"), 400, "echo: expected true or false, found an integer"},
      {kCompletions, with(R"("stream":"yes")"), 400, "stream: expected true or false, found a string"},
      {kCompletions, with(R"("stream_options":5)"), 400, "stream_options: expected an object, found an integer"},
      {kCompletions, with(R"("regex":"a+")"), 400, "regex: not supported by this server"},
      {kCompletions, with(R"("lora_path":"x")"), 400, "lora_path: not supported by this server"},
      {kCompletions, with(R"("suffix":"x")"), 400, "suffix: not supported by this server"},
      {kCompletions, with(R"("guided_regex":"a+")"), 400, "guided_regex: not supported by this server"},
      {kCompletions, with(R"("response_format":{"type":"json_object"})"), 400, "response_format.type: 'json_object' is not supported by this server"},
      {kCompletions, with(R"("stream":true,"max_tokens":2147483647)"), 400, "prompt: Requested token count exceeds the model's maximum context length of 2048 tokens: 1 of the input and 2147483647 of the answer"},
      {kGenerate, R"({"text":"a","sampling_params":{"max_new_tokens":-1}})", 400, "sampling_params.max_new_tokens: expected an integer in [0, 2147483647], found -1"},
      {kGenerate, R"({"text":"a","sampling_params":{"json_schema":"{}"}})", 400, "sampling_params.json_schema: not supported by this server"},
  });
}

TEST_F(BadRequests, WithWrongChats) {
  expect_refusals({
      {kChat, "{}", 400, "messages: required but missing"},
      {kChat, R"({"messages":[]})", 400, "messages: Messages cannot be empty."},
      {kChat, R"({"messages":"hi"})", 400, "messages: expected a list, found a string"},
      {kChat, say("5"), 400, "messages[0]: expected an object, found an integer"},
      {kChat, say(R"({"role":"user"})"), 400, "messages[0].content: required but missing"},
      {kChat, say(R"({"role":"robot","content":"x"})"), 400, "messages[0].role: expected system, user, assistant, tool, function or developer, found 'robot'"},
      {kChat, say(R"({"role":"user","content":[{"type":"image_url"}]})"), 400, "messages[0].content[0].type: 'image_url' is not supported by this server"},
      {kChat, say(R"({"role":"user","content":")" + repeat("a", 100000) + "\"}"), 400, "messages: the input (100018 tokens) is longer than the model's context length (2048 tokens)"},
      {kChat, say(R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"["}}]})"), 400, "messages[0].tool_calls[0].function.arguments: expected a JSON object in a string"},
      {kChat, chat(R"("tools":[5])"), 400, "tools[0]: expected an object, found an integer"},
      {kChat, chat(R"("tools":[{"function":{"name":"f"}}],"tool_choice":"required")"), 400, "tool_choice: forcing a tool call is not supported by this server"},
      {kChat, chat(R"("tool_choice":{"function":{"name":"f"}})"), 400, "tool_choice.function.name: 'f' is not in tools"},
      {kChat, chat(R"("response_format":{"type":"json_schema","json_schema":{}})"), 400, "response_format.type: 'json_schema' is not supported by this server"},
      {kChat, chat(R"("response_format":{"type":"xml"})"), 400, "response_format.type: 'xml' is not supported by this server"},
      {kChat, chat(R"("max_completion_tokens":0)"), 400, "max_completion_tokens: expected an integer in [1, 2147483647], found 0"},
      {kChat, chat(R"("top_logprobs":5)"), 400, "top_logprobs: needs logprobs: true"},
      {kChat, chat(R"("separate_reasoning":"yes")"), 400, "separate_reasoning: expected true or false, found a string"},
      {kChat, chat(R"("continue_final_message":true)"), 400, "continue_final_message: the last message must be the assistant's"},
  });
}
// clang-format on

}  // namespace
}  // namespace nibble::server
