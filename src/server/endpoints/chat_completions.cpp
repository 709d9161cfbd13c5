// POST /v1/chat/completions: OpenAI's chat.
#include <boost/json.hpp>

#include "server/api_error.h"
#include "server/chat_prompt.h"
#include "server/endpoints/chat_request.h"
#include "server/endpoints/endpoints.h"
#include "server/logprob_json.h"
#include "server/run_generation.h"
#include "server/stream_pace.h"

namespace nibble::server {

namespace json = boost::json;

namespace {

struct ChatAnswer {
  http::ExchangePtr exchange;  // shared with the call that made it
  const text::Tokenizer* tokenizer;
  OpenAiHead head;
  OpenAiOptions options;
  int64_t n;
  int64_t stream_interval;
  bool with_logprobs;

  struct Shown {
    size_t tokens = 0;
    size_t bytes = 0;
    bool began = false;
  };
  std::vector<Shown> shown;  // what a stream has sent, a sequence each
  std::vector<StreamPace> pace;

  json::value logprobs(const Sequence& sequence, size_t from_token) const;
  void update(Generation& generation, size_t index);
  void update_stream(Generation& generation, size_t index);
  void send(const Generation& generation, json::array choices, bool with_usage) const;
  void send_delta(const Generation& generation,
                  size_t index,
                  json::object delta,
                  json::value logprobs,
                  json::value finish_reason,
                  json::value matched_stop) const;
};

json::value ChatAnswer::logprobs(const Sequence& sequence, size_t from_token) const {
  if (!with_logprobs) {
    return nullptr;
  }
  const size_t begin = std::min(from_token, sequence.logprobs.size());
  return json::object{{"content",
                       chat_logprobs(tokenizer,
                                     {std::span(sequence.tokens).subspan(begin),
                                      std::span(sequence.logprobs).subspan(begin)})}};
}

void ChatAnswer::send(const Generation& generation, json::array choices, bool with_usage) const {
  json::object event = head.object("chat.completion.chunk");
  event["choices"] = std::move(choices);
  event["usage"] = with_usage ? json::value(usage_json(generation, n)) : json::value(nullptr);
  exchange->write("data: " + json::serialize(event) + "\n\n");
}

void ChatAnswer::send_delta(const Generation& generation,
                            size_t index,
                            json::object delta,
                            json::value logprobs,
                            json::value finish_reason,
                            json::value matched_stop) const {
  json::array choices;
  choices.push_back(json::object{{"index", index},
                                 {"delta", std::move(delta)},
                                 {"logprobs", std::move(logprobs)},
                                 {"finish_reason", std::move(finish_reason)},
                                 {"matched_stop", std::move(matched_stop)}});
  send(generation, std::move(choices), options.continuous_usage);
}

void ChatAnswer::update_stream(Generation& generation, size_t index) {
  const Sequence& sequence = generation.sequences()[index];
  Shown& sent = shown[index];
  if (sequence.failed()) {
    exchange->write(error_event(sequence.error, ApiStyle::OpenAi));
  } else if (pace[index].due(sequence, *exchange, stream_interval)) {
    if (!sent.began) {
      send_delta(
          generation, index, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr, nullptr);
      sent.began = true;
    }
    const std::string& text = sequence.text.text();
    if (text.size() > sent.bytes || (with_logprobs && sequence.tokens.size() > sent.tokens)) {
      send_delta(generation,
                 index,
                 {{"content", text.substr(sent.bytes)}},
                 logprobs(sequence, sent.tokens),
                 nullptr,
                 nullptr);
      sent.bytes = text.size();
      sent.tokens = sequence.tokens.size();
    }
    if (sequence.done()) {
      send_delta(generation,
                 index,
                 {},
                 nullptr,
                 finish_reason_json(sequence),
                 matched_stop_json(sequence));
    }
  }
  if (generation.all_done()) {
    if (options.include_usage) {
      send(generation, {}, true);
    }
    exchange->write("data: [DONE]\n\n");
    exchange->finish();
  }
}

void ChatAnswer::update(Generation& generation, size_t index) {
  if (options.stream) {
    update_stream(generation, index);
    return;
  }
  if (!generation.all_done()) {
    return;
  }
  json::array choices;
  for (size_t i = 0; i < generation.sequences().size(); ++i) {
    const Sequence& sequence = generation.sequences()[i];
    if (sequence.failed()) {
      exchange->respond(error_response(sequence.error, ApiStyle::OpenAi));
      return;
    }
    choices.push_back(json::object{{"index", i},
                                   {"message",
                                    {{"role", "assistant"},
                                     {"content", sequence.text.text()},
                                     {"reasoning_content", nullptr},
                                     {"tool_calls", nullptr}}},
                                   {"logprobs", logprobs(sequence, 0)},
                                   {"finish_reason", finish_reason_json(sequence)},
                                   {"matched_stop", matched_stop_json(sequence)}});
  }
  json::object body = head.object("chat.completion");
  body["choices"] = std::move(choices);
  body["usage"] = usage_json(generation, n);
  body["metadata"] = metadata_json(generation);
  exchange->respond({200, "application/json", json::serialize(body), {}});
}

}  // namespace

Result<void> handle_chat_completions(Call& call) {
  ServerContext& context = call.context;
  ChatRequest request = TRY(parse_chat_request(call.request().body, context.limits));
  TokenIds prompt = request.input_ids ? std::move(*request.input_ids)
                                      : TRY(encode_chat_prompt(context, request.prompt));
  if (prompt.empty()) {
    return invalid("must not be empty", "input_ids");
  }
  auto answer = std::make_shared<ChatAnswer>();
  answer->exchange = call.exchange;
  answer->tokenizer = context.tokenizer();
  answer->head = make_head(context, request.options, "chatcmpl-");
  answer->options = request.options;
  answer->n = request.sampling.n;
  answer->stream_interval = context.config.stream_interval;
  answer->with_logprobs = request.logprobs;

  std::vector<SequenceSpec> specs;
  const auto count = static_cast<size_t>(answer->n);
  const uint64_t seed = request.sampling.seed ? *request.sampling.seed : context.make_seed();
  for (size_t k = 0; k < count; ++k) {
    SequenceSpec spec = TRY(
        make_spec(context, request.sampling, prompt, "messages", seed, static_cast<int64_t>(k)));
    spec.rid = sequence_rid(answer->head, k, count);
    spec.logprobs.output = request.logprobs;
    spec.logprobs.top = static_cast<int32_t>(request.top_logprobs);
    spec.extra_key = request.options.extra_key;
    specs.push_back(std::move(spec));
  }
  answer->shown.resize(count);
  answer->pace.resize(count);
  return run_generation(call, std::move(specs), answer, request.options.stream);
}

}  // namespace nibble::server
