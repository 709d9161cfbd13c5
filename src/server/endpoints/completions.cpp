// POST /v1/completions: OpenAI's text completion.
#include <boost/json.hpp>

#include "server/endpoints/completions_request.h"
#include "server/endpoints/endpoints.h"
#include "server/openai_answer.h"
#include "server/run_generation.h"

namespace nibble::server {

namespace json = boost::json;

namespace {

class CompletionAnswer final : public OpenAiAnswer {
 public:
  // echoes: a sequence each; empty without echo.
  CompletionAnswer(const Call& call,
                   const CompletionRequest& request,
                   std::vector<std::string> echoes)
      : OpenAiAnswer(call,
                     {"text_completion", "text_completion"},
                     make_head(call.context, request.options, "cmpl-"),
                     request.options,
                     request.sampling.n,
                     echoes.size()),
        with_logprobs_(request.logprobs.has_value()),
        shown_(echoes.size()),
        echoes_(std::move(echoes)) {}

 private:
  struct Shown {
    size_t tokens = 0;
    size_t bytes = 0;
    bool began = false;
  };

  json::object choice(const Sequence& sequence, size_t index, const Shown& from) const;
  json::object whole_choice(const Sequence& sequence, size_t index) override {
    return choice(sequence, index, {});
  }
  void stream_news(const Generation& generation, size_t index) override {
    const Sequence& sequence = generation.sequences()[index];
    send(generation, choice(sequence, index, shown_[index]));
    shown_[index] = {sequence.tokens.size(), sequence.text.text().size(), true};
  }

  bool with_logprobs_;
  std::vector<Shown> shown_;  // what a stream has sent
  std::vector<std::string> echoes_;
};

json::object CompletionAnswer::choice(const Sequence& sequence,
                                      size_t index,
                                      const Shown& from) const {
  std::string text = from.began ? std::string() : echoes_[index];
  text += std::string_view(sequence.text.text()).substr(from.bytes);
  json::value logprobs;
  if (with_logprobs_) {
    std::vector<LogprobRun> runs;
    if (!from.began && sequence.spec.logprobs.prompt_start == 0) {
      runs.push_back({sequence.spec.prompt, sequence.prompt_logprobs});
    }
    runs.push_back(logprobs_from(sequence, from.tokens));
    logprobs = completion_logprobs(tokenizer(), runs);
  }
  return {{"index", index},
          {"text", std::move(text)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", finish_reason_json(sequence)},
          {"matched_stop", matched_stop_json(sequence)}};
}

}  // namespace

Result<void> handle_completions(Call& call) {
  ServerContext& context = call.context;
  CompletionRequest request = TRY(parse_completion_request(call.request().body, context.limits));
  const int64_t n = request.sampling.n;
  std::vector<SequenceSpec> specs;
  std::vector<std::string> echoes;
  const size_t num_prompts = request.prompts.prompts.size();
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
    for (int64_t k = 0; k < n; ++k) {
      SequenceSpec spec = TRY(make_spec(context, request.sampling, prompt, path, seed, k));
      if (request.logprobs) {
        spec.logprobs.output = true;
        spec.logprobs.top = static_cast<int32_t>(*request.logprobs);
        spec.logprobs.prompt_start = request.echo ? 0 : -1;
      }
      spec.extra_key = request.options.extra_key;
      specs.push_back(std::move(spec));
      echoes.push_back(request.echo ? echo : std::string());
    }
  }
  auto answer = std::make_shared<CompletionAnswer>(call, request, std::move(echoes));
  for (size_t i = 0; i < specs.size(); ++i) {
    specs[i].rid = sequence_rid(answer->head(), i, specs.size());
  }
  return run_generation(call, std::move(specs), answer, request.options.stream);
}

}  // namespace nibble::server
