// POST /v1/completions: OpenAI's text completion.
#include <boost/json.hpp>

#include "server/api_error.h"
#include "server/endpoints/completions_request.h"
#include "server/endpoints/endpoints.h"
#include "server/logprob_json.h"
#include "server/run_generation.h"
#include "server/stream_pace.h"

namespace nibble::server {

namespace json = boost::json;

namespace {

struct CompletionAnswer {
  http::ExchangePtr exchange;  // shared with the call that made it
  const text::Tokenizer* tokenizer;
  OpenAiHead head;
  OpenAiOptions options;
  int64_t n;
  int64_t stream_interval;
  bool with_logprobs;
  std::vector<std::string> echoes;  // a sequence each; empty without echo

  struct Shown {
    size_t tokens = 0;
    size_t bytes = 0;
    bool began = false;
  };
  std::vector<Shown> shown;  // what a stream has sent
  std::vector<StreamPace> pace;

  json::object choice(const Sequence& sequence, size_t index, const Shown& from) const;
  void update(Generation& generation, size_t index);
  void update_stream(Generation& generation, size_t index);
};

json::object CompletionAnswer::choice(const Sequence& sequence,
                                      size_t index,
                                      const Shown& from) const {
  std::string text = from.began ? std::string() : echoes[index];
  text += std::string_view(sequence.text.text()).substr(from.bytes);
  json::value logprobs;
  if (with_logprobs) {
    std::vector<LogprobRun> runs;
    if (!from.began && sequence.spec.logprobs.prompt_start == 0) {
      runs.push_back({sequence.spec.prompt, sequence.prompt_logprobs});
    }
    const size_t begin = std::min(from.tokens, sequence.logprobs.size());
    runs.push_back(
        {std::span(sequence.tokens).subspan(begin), std::span(sequence.logprobs).subspan(begin)});
    logprobs = completion_logprobs(tokenizer, runs);
  }
  return {{"index", index},
          {"text", std::move(text)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", finish_reason_json(sequence)},
          {"matched_stop", matched_stop_json(sequence)}};
}

void CompletionAnswer::update_stream(Generation& generation, size_t index) {
  const Sequence& sequence = generation.sequences()[index];
  const auto send = [&](json::array choices, bool with_usage) {
    json::object event = head.object("text_completion");
    event["choices"] = std::move(choices);
    event["usage"] = with_usage ? json::value(usage_json(generation, n)) : json::value(nullptr);
    exchange->write("data: " + json::serialize(event) + "\n\n");
  };
  if (sequence.failed()) {
    exchange->write(error_event(sequence.error, ApiStyle::OpenAi));
  } else if (pace[index].due(sequence, *exchange, stream_interval)) {
    send({choice(sequence, index, shown[index])}, options.continuous_usage);
    shown[index] = {sequence.tokens.size(), sequence.text.text().size(), true};
  }
  if (generation.all_done()) {
    if (options.include_usage) {
      send({}, true);
    }
    exchange->write("data: [DONE]\n\n");
    exchange->finish();
  }
}

void CompletionAnswer::update(Generation& generation, size_t index) {
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
    choices.push_back(choice(sequence, i, {}));
  }
  json::object body = head.object("text_completion");
  body["choices"] = std::move(choices);
  body["usage"] = usage_json(generation, n);
  body["metadata"] = metadata_json(generation);
  exchange->respond({200, "application/json", json::serialize(body), {}});
}

}  // namespace

Result<void> handle_completions(Call& call) {
  ServerContext& context = call.context;
  CompletionRequest request = TRY(parse_completion_request(call.request().body, context.limits));
  auto answer = std::make_shared<CompletionAnswer>();
  answer->exchange = call.exchange;
  answer->tokenizer = context.tokenizer();
  answer->head = make_head(context, request.options, "cmpl-");
  answer->options = request.options;
  answer->n = request.sampling.n;
  answer->stream_interval = context.config.stream_interval;
  answer->with_logprobs = request.logprobs.has_value();

  std::vector<SequenceSpec> specs;
  const size_t num_prompts = request.prompts.prompts.size();
  const size_t count = num_prompts * static_cast<size_t>(answer->n);
  for (size_t i = 0; i < num_prompts; ++i) {
    const std::string path =
        request.prompts.batch ? "prompt[" + std::to_string(i) + "]" : std::string("prompt");
    std::string echo;
    if (const auto* text = std::get_if<std::string>(&request.prompts.prompts[i])) {
      echo = *text;
    }
    TokenIds prompt = TRY(encode_prompt(context, std::move(request.prompts.prompts[i]), path));
    if (echo.empty() && request.echo && context.text != nullptr) {
      echo = context.text->tokenizer.decode(prompt, request.sampling.text.skip_special_tokens);
    }
    const uint64_t seed = request.sampling.seed ? *request.sampling.seed : context.make_seed();
    for (int64_t k = 0; k < answer->n; ++k) {
      SequenceSpec spec = TRY(make_spec(context, request.sampling, prompt, path, seed, k));
      spec.rid = sequence_rid(answer->head, specs.size(), count);
      if (request.logprobs) {
        spec.logprobs.output = true;
        spec.logprobs.top = static_cast<int32_t>(*request.logprobs);
        spec.logprobs.prompt_start = request.echo ? 0 : -1;
      }
      spec.extra_key = request.options.extra_key;
      specs.push_back(std::move(spec));
      answer->echoes.push_back(request.echo ? echo : std::string());
    }
  }
  answer->shown.resize(count);
  answer->pace.resize(count);
  return run_generation(call, std::move(specs), answer, request.options.stream);
}

}  // namespace nibble::server
