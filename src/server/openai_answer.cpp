#include "server/openai_answer.h"

#include <algorithm>
#include <span>
#include <utility>

#include <boost/json.hpp>

#include "server/api_error.h"

namespace nibble::server {

namespace json = boost::json;

OpenAiAnswer::OpenAiAnswer(const Call& call,
                           Kinds kinds,
                           OpenAiHead head,
                           OpenAiOptions options,
                           int64_t n,
                           size_t num_sequences)
    : exchange_(call.exchange),
      tokenizer_(call.context.tokenizer()),
      kinds_(kinds),
      head_(std::move(head)),
      options_(std::move(options)),
      n_(n),
      stream_interval_(call.context.config.stream_interval),
      pace_(num_sequences) {}

size_t OpenAiAnswer::reasoning_tokens(const Sequence& /*sequence*/) const { return 0; }

LogprobRun OpenAiAnswer::logprobs_from(const Sequence& sequence, size_t token) {
  const size_t begin = std::min(token, sequence.logprobs.size());
  return {std::span(sequence.tokens).subspan(begin), std::span(sequence.logprobs).subspan(begin)};
}

// Of all sequences; n answers share one prompt.
json::object OpenAiAnswer::usage(const Generation& generation) const {
  size_t prompt_tokens = 0;
  size_t completion_tokens = 0;
  size_t reasoning = 0;
  int64_t cached_tokens = 0;
  for (size_t i = 0; i < generation.sequences().size(); ++i) {
    const Sequence& sequence = generation.sequences()[i];
    completion_tokens += sequence.tokens.size();
    reasoning += reasoning_tokens(sequence);
    if (i % static_cast<size_t>(n_) == 0) {
      prompt_tokens += sequence.spec.prompt.size();
      cached_tokens += sequence.cached_tokens;
    }
  }
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning}}},
          {"reasoning_tokens", reasoning}};
}

void OpenAiAnswer::send_event(const Generation& generation,
                              json::array choices,
                              bool with_usage) const {
  json::object event = head_.object(kinds_.event);
  event["choices"] = std::move(choices);
  event["usage"] = with_usage ? json::value(usage(generation)) : json::value(nullptr);
  exchange_->write("data: " + json::serialize(event) + "\n\n");
}

void OpenAiAnswer::send(const Generation& generation, json::object choice) const {
  json::array choices;
  choices.push_back(std::move(choice));
  send_event(generation, std::move(choices), options_.continuous_usage);
}

void OpenAiAnswer::update_stream(const Generation& generation, size_t index) {
  const Sequence& sequence = generation.sequences()[index];
  if (sequence.failed()) {
    exchange_->write(error_event(sequence.error, ApiStyle::OpenAi));
  } else if (pace_[index].due(sequence, *exchange_, stream_interval_)) {
    stream_news(generation, index);
  }
  if (generation.all_done()) {
    if (options_.include_usage) {
      send_event(generation, {}, true);
    }
    exchange_->write("data: [DONE]\n\n");
    exchange_->finish();
  }
}

void OpenAiAnswer::update(Generation& generation, size_t index) {
  if (options_.stream) {
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
      exchange_->respond(error_response(sequence.error, ApiStyle::OpenAi));
      return;
    }
    choices.push_back(whole_choice(sequence, i));
  }
  json::object body = head_.object(kinds_.whole);
  body["choices"] = std::move(choices);
  body["usage"] = usage(generation);
  body["metadata"] = metadata_json(generation);
  exchange_->respond({200, "application/json", json::serialize(body), {}});
}

}  // namespace nibble::server
