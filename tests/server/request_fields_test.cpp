// What is refused and how, for the three request bodies: one table, every row a message.
#include "server/request_fields.h"

#include <gtest/gtest.h>

#include "server/endpoints/chat_request.h"
#include "server/endpoints/completions_request.h"
#include "server/endpoints/generate_request.h"

namespace nibble::server {
namespace {

RequestLimits limits() {
  RequestLimits out;
  out.vocab_size = 100;
  out.context_length = 64;
  out.max_sequences = 8;
  return out;
}

template <typename Request>
std::string error_of(const Result<Request>& result) {
  return result ? "accepted" : result.error().text();
}

struct Row {
  const char* body;
  const char* error;
};

std::string nested(int depth) {
  std::string text = R"({"text":"a","x":)";
  text.append(static_cast<size_t>(depth), '[');
  text.append(static_cast<size_t>(depth), ']');
  return text + "}";
}

TEST(GenerateRequest, RefusesWithTheFieldAndWhatWasFound) {
  const Row rows[] = {
      {R"([])", "body: expected a JSON object, found an array"},
      {R"({})", "one of text and input_ids is required"},
      {R"({"text":null})", "one of text and input_ids is required"},
      {R"({"text":5})",
       "text: expected a string, a list of strings, a list of token ids or a list of those, found "
       "an integer"},
      {R"({"text":[1,2]})", "text: expected a string or a list of strings, found token ids"},
      {R"({"text":[]})", "text: must not be empty"},
      {R"({"text":["a",1]})", "text[1]: expected a string, found an integer"},
      {R"({"input_ids":"a"})", "input_ids: expected token ids, found text"},
      {R"({"input_ids":[]})", "input_ids: must not be empty"},
      {R"({"input_ids":[[]]})", "input_ids[0]: must not be empty"},
      {R"({"input_ids":[1,100]})",
       "input_ids[1]: token id 100 is out-of-vocabulary, which has 100 tokens"},
      {R"({"input_ids":[-1]})",
       "input_ids[0]: token id -1 is out-of-vocabulary, which has 100 tokens"},
      {R"({"input_ids":[1.5]})", "input_ids[0]: expected a token id, found a number"},
      {R"({"input_ids":[18446744073709551615]})",
       "input_ids[0]: expected a token id, found an integer"},
      {R"({"input_ids":[1,"x"]})", "input_ids[1]: expected a token id, found a string"},
      {R"({"text":"a","sampling_params":3})",
       "sampling_params: expected an object, found an integer"},
      {R"({"text":"a","sampling_params":[{},{}]})",
       "sampling_params: expected one value for each of the 1 prompts, found 2"},
      {R"({"text":["a","b"],"sampling_params":[{"n":2},{"n":1}]})",
       "sampling_params[1].n: n must be the same for all prompts of a request"},
      {R"({"text":["a","b"],"sampling_params":{"n":5}})",
       "sampling_params.n: prompts times n may be at most 8"},
      {R"({"text":"a","sampling_params":{"n":0}})",
       "sampling_params.n: expected an integer in [1, 8], found 0"},
      {R"({"text":"a","sampling_params":{"temperature":"hot"}})",
       "sampling_params.temperature: expected a number, found a string"},
      {R"({"text":"a","sampling_params":{"temperature":true}})",
       "sampling_params.temperature: expected a number, found a boolean"},
      {R"({"text":"a","sampling_params":{"top_p":0}})",
       "sampling_params.top_p: expected a number in (0, 1], found 0"},
      {R"({"text":"a","sampling_params":{"top_p":1.5}})",
       "sampling_params.top_p: expected a number in (0, 1], found 1.5"},
      {R"({"text":"a","sampling_params":{"top_k":0}})",
       "sampling_params.top_k: expected -1 (all) or at least 1, found 0"},
      {R"({"text":"a","sampling_params":{"top_k":-2}})",
       "sampling_params.top_k: expected an integer in [-1, 2147483647], found -2"},
      {R"({"text":"a","sampling_params":{"min_p":-0.5}})",
       "sampling_params.min_p: expected a number in [0, 1], found -0.5"},
      {R"({"text":"a","sampling_params":{"frequency_penalty":2.5}})",
       "sampling_params.frequency_penalty: expected a number in [-2, 2], found 2.5"},
      {R"({"text":"a","sampling_params":{"presence_penalty":-3}})",
       "sampling_params.presence_penalty: expected a number in [-2, 2], found -3"},
      {R"({"text":"a","sampling_params":{"repetition_penalty":0}})",
       "sampling_params.repetition_penalty: expected a number in (0, 2], found 0"},
      {R"({"text":"a","sampling_params":{"max_new_tokens":-1}})",
       "sampling_params.max_new_tokens: expected an integer in [0, 2147483647], found -1"},
      {R"({"text":"a","sampling_params":{"max_new_tokens":1e30}})",
       "sampling_params.max_new_tokens: expected an integer, found a number"},
      {R"({"text":"a","sampling_params":{"max_new_tokens":"many"}})",
       "sampling_params.max_new_tokens: expected an integer, found a string"},
      {R"({"text":"a","sampling_params":{"max_new_tokens":4,"min_new_tokens":5}})",
       "sampling_params.min_new_tokens: expected an integer in [0, 4], found 5"},
      {R"({"text":"a","sampling_params":{"stop":[1]}})",
       "sampling_params.stop[0]: expected a string, found an integer"},
      {R"({"text":"a","sampling_params":{"stop":["x",""]}})",
       "sampling_params.stop: a stop string must not be empty; leave it out"},
      {R"({"text":"a","sampling_params":{"stop":{}}})",
       "sampling_params.stop: expected a string, found an object"},
      {R"({"text":"a","sampling_params":{"stop_token_ids":[100]}})",
       "sampling_params.stop_token_ids[0]: token id 100 is out-of-vocabulary, which has 100 "
       "tokens"},
      {R"({"text":"a","sampling_params":{"stop_token_ids":5}})",
       "sampling_params.stop_token_ids: expected a list of token ids, found an integer"},
      {R"({"text":"a","sampling_params":{"logit_bias":{"x":1}}})",
       "sampling_params.logit_bias: expected token ids as keys, found 'x'"},
      {R"({"text":"a","sampling_params":{"logit_bias":{"100":1}}})",
       "sampling_params.logit_bias: token id 100 is outside the vocabulary of 100"},
      {R"({"text":"a","sampling_params":{"logit_bias":{"1":"big"}}})",
       "sampling_params.logit_bias.1: expected a number, found a string"},
      {R"({"text":"a","sampling_params":{"ignore_eos":1}})",
       "sampling_params.ignore_eos: expected true or false, found an integer"},
      {R"({"text":"a","sampling_params":{"sampling_seed":"s"}})",
       "sampling_params.sampling_seed: expected an integer, found a string"},
      {R"({"text":"a","sampling_params":{"json_schema":"{}"}})",
       "sampling_params.json_schema: not supported by this server"},
      {R"({"text":"a","sampling_params":{"regex":"a*"}})",
       "sampling_params.regex: not supported by this server"},
      {R"({"text":"a","return_logprob":"yes"})",
       "return_logprob: expected true or false, found a string"},
      {R"({"text":"a","return_logprob":[true,false]})",
       "return_logprob: expected one value for each of the 1 prompts, found 2"},
      {R"({"text":"a","logprob_start_len":-2})",
       "logprob_start_len: expected an integer in [-1, 64], found -2"},
      {R"({"text":"a","top_logprobs_num":101})",
       "top_logprobs_num: expected an integer in [0, 100], found 101"},
      {R"({"text":"a","token_ids_logprob":[[1]]})",
       "token_ids_logprob: expected a flat list of integers, found a list of lists"},
      {R"({"text":"a","token_ids_logprob":7})",
       "token_ids_logprob: expected a flat list of integers, found an integer"},
      {R"({"text":"a","token_ids_logprob":[100]})",
       "token_ids_logprob[0]: token id 100 is out-of-vocabulary, which has 100 tokens"},
      {R"({"text":"a","stream":"yes"})", "stream: expected true or false, found a string"},
      {R"({"text":"a","rid":7})", "rid: expected a string, found an integer"},
      {R"({"text":"a","rid":""})", "rid: must not be empty"},
      {R"({"text":"a","rid":["x","y"]})",
       "rid: expected one id for each of the 1 prompts, found 2"},
      {R"({"text":"a","stream_interval":0})",
       "stream_interval: expected an integer in [1, 1048576], found 0"},
      {R"({"text":"a","routed_dp_rank":1})",
       "routed_dp_rank: this server has one data-parallel rank, 0, found 1"},
      {R"({"text":"a","input_embeds":[[1.0]]})", "input_embeds: not supported by this server"},
      {R"({"text":"a","image_data":"x"})", "image_data: not supported by this server"},
      {R"({"text":"a","lora_path":"x"})", "lora_path: not supported by this server"},
      {R"({"text":"a","custom_logit_processor":"x"})",
       "custom_logit_processor: not supported by this server"},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(error_of(parse_generate_request(row.body, limits())), row.error) << row.body;
  }
}

TEST(Requests, MayNotAskForTheLogprobsOfAWholeVocabulary) {
  RequestLimits large = limits();
  large.vocab_size = 150000;
  EXPECT_EQ(error_of(parse_generate_request(R"({"text":"a","top_logprobs_num":1000})", large)),
            "accepted");
  EXPECT_EQ(error_of(parse_generate_request(R"({"text":"a","top_logprobs_num":1001})", large)),
            "top_logprobs_num: expected an integer in [0, 1000], found 1001");
  EXPECT_EQ(error_of(parse_completion_request(R"({"prompt":"a","logprobs":1001})", large)),
            "logprobs: expected an integer in [0, 1000], found 1001");
  EXPECT_EQ(
      error_of(parse_chat_request(
          R"({"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":1001})",
          large)),
      "top_logprobs: expected an integer in [0, 1000], found 1001");
  std::string ids = "0";
  for (int i = 1; i < 1000; ++i) {
    ids += ",0";
  }
  const auto with_ids = [&](const std::string& list) {
    return error_of(
        parse_generate_request(R"({"text":"a","token_ids_logprob":[)" + list + "]}", large));
  };
  EXPECT_EQ(with_ids(ids), "accepted");
  EXPECT_EQ(with_ids(ids + ",0"), "token_ids_logprob: expected at most 1000 token ids, found 1001");
}

TEST(GenerateRequest, RefusesWhatIsNotJson) {
  for (const std::string& body : {std::string(),
                                  std::string("{"),
                                  std::string("{\"text\":\"a\"} x"),
                                  std::string("{\"text\":\"\xff\"}"),
                                  nested(20000)}) {
    EXPECT_FALSE(parse_generate_request(body, limits())) << body.substr(0, 40);
  }
  EXPECT_TRUE(parse_generate_request(nested(10), limits()));  // an unknown field, within the depth
}

TEST(GenerateRequest, ReadsEveryFieldAndItsDefault) {
  const auto plain = parse_generate_request(R"({"text":"a","unknown":{"x":1}})", limits());
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->sampling[0].max_new_tokens, 128);
  EXPECT_EQ(plain->sampling[0].params.temperature, 1.0f);
  EXPECT_EQ(plain->sampling[0].params.top_k, -1);
  EXPECT_FALSE(plain->sampling[0].seed);
  EXPECT_FALSE(plain->logprobs[0].output);
  EXPECT_FALSE(plain->prompts.batch);

  const auto full = parse_generate_request(
      R"({"input_ids":[[1,2],[3]],"rid":"r","stream":true,"return_logprob":[true,false],
          "logprob_start_len":0,"top_logprobs_num":[2,3],"token_ids_logprob":[[4],[5,6]],
          "sampling_params":{"temperature":1e-9,"top_p":0.5,"top_k":7,"min_p":0.1,"n":2,
          "frequency_penalty":1,"presence_penalty":-1,"repetition_penalty":1.5,"stop":["x","yz"],
          "max_new_tokens":null,"stop_token_ids":[9],"ignore_eos":true,"logit_bias":{"3":-5.5},
          "sampling_seed":18446744073709551615,"skip_special_tokens":false,"no_stop_trim":true}})",
      limits());
  ASSERT_TRUE(full) << error_of(full);
  const Sampling& sampling = full->sampling[1];
  EXPECT_EQ(sampling.params.temperature, 0.0f);
  EXPECT_EQ(sampling.params.top_p, 0.5f);
  EXPECT_EQ(sampling.params.top_k, 7);
  EXPECT_EQ(sampling.params.min_p, 0.1f);
  EXPECT_EQ(sampling.params.frequency_penalty, 1.0f);
  EXPECT_EQ(sampling.params.presence_penalty, -1.0f);
  EXPECT_EQ(sampling.params.repetition_penalty, 1.5f);
  EXPECT_EQ(sampling.params.stop_token_ids, (std::vector<int32_t>{9}));
  EXPECT_EQ(sampling.params.logit_bias, (std::vector<std::pair<int32_t, float>>{{3, -5.5f}}));
  EXPECT_TRUE(sampling.params.ignore_eos);
  EXPECT_EQ(sampling.seed, 18446744073709551615u);
  EXPECT_FALSE(sampling.max_new_tokens);
  EXPECT_EQ(sampling.text.stop, (std::vector<std::string>{"x", "yz"}));
  EXPECT_TRUE(sampling.text.no_stop_trim);
  EXPECT_FALSE(sampling.text.skip_special_tokens);
  EXPECT_EQ(full->rids, (std::vector<std::string>{"r_0", "r_1"}));
  EXPECT_TRUE(full->logprobs[0].output);
  EXPECT_FALSE(full->logprobs[1].output);
  EXPECT_EQ(full->logprobs[0].top, 2);
  EXPECT_EQ(full->logprobs[0].prompt_start, 0);
  EXPECT_EQ(full->logprobs[0].token_ids, (std::vector<int32_t>{4}));
}

TEST(CompletionRequest, RefusesWithTheFieldAndWhatWasFound) {
  const Row rows[] = {
      {R"({})", "prompt: required but missing"},
      {R"({"prompt":{}})",
       "prompt: expected a string, a list of strings, a list of token ids or a list of those, "
       "found an object"},
      {R"({"prompt":[[1],"a"]})", "prompt[1]: expected a list of token ids, found a string"},
      {R"({"prompt":"a","max_tokens":0})",
       "max_tokens: expected an integer in [1, 2147483647], found 0"},
      {R"({"prompt":"a","logprobs":-1})", "logprobs: expected an integer in [0, 100], found -1"},
      {R"({"prompt":"a","logprobs":true})", "logprobs: expected an integer, found a boolean"},
      {R"({"prompt":"a","echo":"x"})", "echo: expected true or false, found a string"},
      {R"({"prompt":"a","stream_options":[]})",
       "stream_options: expected an object, found an array"},
      {R"({"prompt":"a","stream_options":{"include_usage":1}})",
       "stream_options.include_usage: expected true or false, found an integer"},
      {R"({"prompt":"a","seed":1.5})", "seed: expected an integer, found a number"},
      {R"({"prompt":"a","model":7})", "model: expected a string, found an integer"},
      {R"({"prompt":["a","b","c"],"n":3})", "n: prompts times n may be at most 8"},
      {R"({"prompt":"a","response_format":{"type":"json_object"}})",
       "response_format.type: 'json_object' is not supported by this server"},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(error_of(parse_completion_request(row.body, limits())), row.error) << row.body;
  }
}

TEST(CompletionRequest, ToleratesWhatRoutersAdd) {
  const auto request = parse_completion_request(
      R"({"prompt":[1,2],"model":"m","logprobs":false,"no_stop_trim":false,"best_of":1,
          "separate_reasoning":true,"return_hidden_states":false,"response_format":{"type":"text"},
          "lora_path":null,"suffix":null,"user":"u"})",
      limits());
  ASSERT_TRUE(request) << error_of(request);
  EXPECT_FALSE(request->logprobs);
  EXPECT_EQ(request->sampling.max_new_tokens, 16);
}

TEST(ChatRequest, RefusesWithTheFieldAndWhatWasFound) {
  const Row rows[] = {
      {R"({})", "messages: required but missing"},
      {R"({"messages":"hi"})", "messages: expected a list, found a string"},
      {R"({"messages":[]})", "messages: Messages cannot be empty."},
      {R"({"messages":["hi"]})", "messages[0]: expected an object, found a string"},
      {R"({"messages":[{"content":"x"}]})", "messages[0].role: required but missing"},
      {R"({"messages":[{"role":"robot","content":"x"}]})",
       "messages[0].role: expected system, user, assistant, tool, function or developer, found "
       "'robot'"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content: required but missing"},
      {R"({"messages":[{"role":"user","content":5}]})",
       "messages[0].content: expected a string or a list of parts, found an integer"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})",
       "messages[0].content[0].type: 'image_url' is not supported by this server"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
       "messages[0].content[0].text: required but missing"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":{}})",
       "tools: expected a list, found an object"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{}]})",
       "tools[0].function: required but missing"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":""}}]})",
       "tools[0].function.name: must not be empty"},
      {R"({"messages":[{"role":"user","content":"x"}],"tool_choice":"required"})",
       "tool_choice: asks for a tool, but there are no tools"},
      {R"({"messages":[{"role":"user","content":"x"}],"tool_choice":"some"})",
       "tool_choice: expected none, auto, required or a function, found 'some'"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"f"}}],
           "tool_choice":{"type":"function","function":{"name":"g"}}})",
       "tool_choice.function.name: 'g' is not in tools"},
      {R"({"messages":[{"role":"user","content":"x"}],"max_tokens":0})",
       "max_tokens: expected an integer in [1, 2147483647], found 0"},
      {R"({"messages":[{"role":"user","content":"x"}],"max_completion_tokens":"5"})",
       "max_completion_tokens: expected an integer, found a string"},
      {R"({"messages":[{"role":"user","content":"x"}],"logprobs":3})",
       "logprobs: expected true or false, found an integer"},
      {R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":2})",
       "top_logprobs: needs logprobs: true"},
      {R"({"messages":[{"role":"user","content":"x"}],"continue_final_message":true})",
       "continue_final_message: the last message must be the assistant's"},
      {R"({"messages":[{"role":"assistant","content":null,
           "tool_calls":[{"function":{"name":"f","arguments":"[1]"}}]}]})",
       "messages[0].tool_calls[0].function.arguments: expected a JSON object in a string"},
      {R"({"messages":[{"role":"assistant","content":null,
           "tool_calls":[{"function":{"name":"f","arguments":[1]}}]}]})",
       "messages[0].tool_calls[0].function.arguments: expected a JSON object in a string"},
      {R"({"messages":[{"role":"user","content":"x"}],"n":9})",
       "n: expected an integer in [1, 8], found 9"},
      {R"({"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":1})",
       "chat_template_kwargs: expected an object, found an integer"},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(error_of(parse_chat_request(row.body, limits())), row.error) << row.body;
  }
}

TEST(ChatRequest, JoinsTextPartsAndOpensToolArguments) {
  const auto request = parse_chat_request(
      R"({"messages":[
            {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
            {"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"x\":1}"}}]},
            {"role":"assistant","content":"I was"}],
          "continue_final_message":true,"tools":[{"type":"function","function":{"name":"f"}}]})",
      limits());
  ASSERT_TRUE(request) << error_of(request);
  const auto& messages = request->prompt.messages.get_array();
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].at("content").get_string(), "a b");
  EXPECT_EQ(messages[1].at("tool_calls").at(0).at("function").at("arguments").at("x"), 1);
  EXPECT_EQ(request->prompt.continued, "I was");
  ASSERT_TRUE(request->prompt.tools);
  EXPECT_FALSE(request->sampling.max_new_tokens);
}

TEST(ChatRequest, CallsWithoutArgumentsHaveAnEmptyObject) {
  for (const char* arguments : {R"(,"arguments":"")", R"(,"arguments":null)", ""}) {
    const auto request = parse_chat_request(
        R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f")" +
            std::string(arguments) + "}}]}]}",
        limits());
    ASSERT_TRUE(request) << error_of(request);
    const auto& call = request->prompt.messages.get_array()[0].at("tool_calls").at(0);
    EXPECT_EQ(call.at("function").at("arguments"), boost::json::object()) << arguments;
  }
}

TEST(ChatRequest, TakesDefaultsFromTheServer) {
  RequestLimits with_defaults = limits();
  with_defaults.defaults.temperature = 0.6f;
  with_defaults.defaults.top_k = 20;
  const char* body = R"({"messages":[{"role":"user","content":"x"}],"top_k":5})";
  const auto request = parse_chat_request(body, with_defaults);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->sampling.params.temperature, 0.6f);
  EXPECT_EQ(request->sampling.params.top_k, 5);
  const auto completion = parse_completion_request(R"({"prompt":"a"})", with_defaults);
  ASSERT_TRUE(completion);
  EXPECT_EQ(completion->sampling.params.temperature, 1.0f);
}

TEST(Requests, WithoutATokenizerNeedIds) {
  RequestLimits ids_only = limits();
  ids_only.has_tokenizer = false;
  EXPECT_EQ(error_of(parse_generate_request(R"({"text":"a"})", ids_only)),
            "text: this server runs without a tokenizer; send token ids");
  EXPECT_EQ(error_of(parse_generate_request(R"({"input_ids":[1],"sampling_params":{"stop":"x"}})",
                                            ids_only)),
            "sampling_params.stop: stop strings need a tokenizer, and this server runs without "
            "one; use stop_token_ids");
  EXPECT_TRUE(parse_generate_request(R"({"input_ids":[1]})", ids_only));
}

}  // namespace
}  // namespace nibble::server
