// POST /generate: SGLang's native endpoint.
#include <chrono>
#include <optional>

#include <boost/json.hpp>

#include "server/api_error.h"
#include "server/endpoints/endpoints.h"
#include "server/endpoints/generate_request.h"
#include "server/logprob_json.h"
#include "server/run_generation.h"
#include "server/stream_pace.h"
#include "server/version_json.h"

namespace nibble::server {

namespace json = boost::json;
using engine::FinishReason;

namespace {

json::value finish_json(const Sequence& sequence) {
  switch (sequence.finish) {
    case FinishReason::None:
      return nullptr;
    case FinishReason::Length:
      return json::object{{"type", "length"}, {"length", sequence.tokens.size()}};
    case FinishReason::StopToken:
      return json::object{{"type", "stop"}, {"matched", sequence.matched_token}};
    case FinishReason::StopString:
      return json::object{{"type", "stop"}, {"matched", sequence.text.matched_stop()}};
    case FinishReason::Abort:
      return json::object{
          {"type", "abort"},
          {"message", sequence.error.message.empty() ? "aborted" : sequence.error.text()},
          {"status_code", nullptr},
          {"err_type", nullptr}};
    case FinishReason::Error:
      return json::object{{"type", "abort"},
                          {"message", sequence.error.text()},
                          {"status_code", http_status(sequence.error.code)},
                          {"err_type", to_string(sequence.error.code)}};
  }
  return nullptr;
}

// The part of a sequence that an answer shows: all of it, or what is new in an incremental stream.
struct Window {
  size_t first_token = 0;
  size_t first_byte = 0;
};

struct NativeAnswer {
  http::ExchangePtr exchange;  // shared with the call that made it
  const text::Tokenizer* tokenizer;
  GenerateRequest request;
  bool as_array;
  bool incremental;
  int64_t stream_interval;
  std::vector<Window> shown;  // a sequence each, of incremental streams
  std::vector<StreamPace> pace;

  json::object result(const Generation& generation, size_t index, const Window& window) const;
  void add_logprobs(const Sequence& sequence, const Window& window, json::object& meta) const;
  void update(Generation& generation, size_t index);
  void update_stream(Generation& generation, size_t index);
};

void NativeAnswer::add_logprobs(const Sequence& sequence,
                                const Window& window,
                                json::object& meta) const {
  const engine::LogprobOptions& options = sequence.spec.logprobs;
  const bool with_text = request.text_in_logprobs;
  const size_t prompt_start = options.prompt_start < 0 ? sequence.spec.prompt.size()
                                                       : static_cast<size_t>(options.prompt_start);
  const LogprobRun input{std::span(sequence.spec.prompt).subspan(prompt_start),
                         sequence.prompt_logprobs};
  const size_t begin = std::min(window.first_token, sequence.logprobs.size());
  const LogprobRun output{std::span(sequence.tokens).subspan(begin),
                          std::span(sequence.logprobs).subspan(begin)};
  meta["input_token_logprobs"] = native_token_logprobs(tokenizer, input, with_text);
  meta["output_token_logprobs"] = native_token_logprobs(tokenizer, output, with_text);
  meta["output_token_logprobs_length"] = output.positions.size();
  if (options.top > 0) {
    meta["input_top_logprobs"] = native_extra_logprobs(tokenizer, input, Extra::Top, with_text);
    meta["output_top_logprobs"] = native_extra_logprobs(tokenizer, output, Extra::Top, with_text);
  }
  if (!options.token_ids.empty()) {
    meta["input_token_ids_logprobs"] =
        native_extra_logprobs(tokenizer, input, Extra::Chosen, with_text);
    meta["output_token_ids_logprobs"] =
        native_extra_logprobs(tokenizer, output, Extra::Chosen, with_text);
  }
}

json::object NativeAnswer::result(const Generation& generation,
                                  size_t index,
                                  const Window& window) const {
  const Sequence& sequence = generation.sequences()[index];
  json::object meta{{"id", sequence.spec.rid},
                    {"finish_reason", finish_json(sequence)},
                    {"prompt_tokens", sequence.spec.prompt.size()},
                    {"completion_tokens", sequence.tokens.size()},
                    {"cached_tokens", sequence.cached_tokens},
                    {"reasoning_tokens", 0},
                    {"num_retractions", sequence.num_retractions},
                    {"dp_rank", 0},
                    {"seed", sequence.spec.sampling.seed}};
  add_weight_versions(sequence, meta);
  if (sequence.done()) {
    meta["e2e_latency"] =
        std::chrono::duration<double>(sequence.finished_at - generation.created_at()).count();
  }
  if (sequence.spec.logprobs.output) {
    add_logprobs(sequence, window, meta);
  }
  if (request.return_prompt_token_ids) {
    meta["prompt_token_ids"] =
        json::array(sequence.spec.prompt.begin(), sequence.spec.prompt.end());
  }
  json::object out{
      {"text", sequence.text.text().substr(window.first_byte)},
      {"output_ids",
       json::array(sequence.tokens.begin() + static_cast<std::ptrdiff_t>(window.first_token),
                   sequence.tokens.end())},
      {"meta_info", std::move(meta)}};
  return out;
}

void NativeAnswer::update_stream(Generation& generation, size_t index) {
  const Sequence& sequence = generation.sequences()[index];
  if (sequence.failed()) {
    exchange->write(error_event(sequence.error, ApiStyle::Native));
  } else if (pace[index].due(sequence, *exchange, stream_interval)) {
    json::object event = result(generation, index, incremental ? shown[index] : Window{});
    if (as_array) {
      event["index"] = index;
    }
    exchange->write("data: " + json::serialize(event) + "\n\n");
    shown[index] = {sequence.tokens.size(), sequence.text.text().size()};
  }
  if (generation.all_done()) {
    exchange->write("data: [DONE]\n\n");
    exchange->finish();
  }
}

void NativeAnswer::update(Generation& generation, size_t index) {
  if (request.stream) {
    update_stream(generation, index);
    return;
  }
  if (!generation.all_done()) {
    return;
  }
  json::array results;
  for (size_t i = 0; i < generation.sequences().size(); ++i) {
    const Sequence& sequence = generation.sequences()[i];
    if (sequence.failed()) {
      exchange->respond(error_response(sequence.error, ApiStyle::Native));
      return;
    }
    results.push_back(result(generation, i, {}));
  }
  exchange->respond({200,
                     "application/json",
                     as_array ? json::serialize(results) : json::serialize(results[0]),
                     {}});
}

Result<std::vector<SequenceSpec>> make_specs(Call& call, GenerateRequest& request) {
  std::vector<SequenceSpec> specs;
  for (size_t i = 0; i < request.prompts.prompts.size(); ++i) {
    const std::string path = request.prompts.batch
                                 ? request.prompt_field + "[" + std::to_string(i) + "]"
                                 : request.prompt_field;
    const Sampling& sampling = request.sampling[i];
    TokenIds prompt = TRY(encode_prompt(call.context, std::move(request.prompts.prompts[i]), path));
    if (request.logprobs[i].prompt_start > static_cast<int64_t>(prompt.size())) {
      return invalid("is higher than the number of input tokens (" + std::to_string(prompt.size()) +
                         "), found " + std::to_string(request.logprobs[i].prompt_start),
                     "logprob_start_len");
    }
    const uint64_t seed = sampling.seed ? *sampling.seed : call.context.make_seed();
    for (int64_t k = 0; k < sampling.n; ++k) {
      SequenceSpec spec = TRY(make_spec(call.context, sampling, prompt, path, seed, k));
      spec.logprobs = request.logprobs[i];
      spec.extra_key = request.extra_key;
      spec.rid = request.rids.empty() ? http::random_id() : request.rids[i];
      if (!request.rids.empty() && sampling.n > 1) {
        spec.rid += "_" + std::to_string(k);
      }
      specs.push_back(std::move(spec));
    }
  }
  return specs;
}

Result<void> start_answer(Call& call, GenerateRequest&& request) {
  std::vector<SequenceSpec> specs = TRY(make_specs(call, request));
  const size_t count = specs.size();
  const bool as_array = request.prompts.batch || request.sampling.front().n > 1;
  const int64_t interval = request.stream_interval.value_or(call.context.config.stream_interval);
  auto answer =
      std::make_shared<NativeAnswer>(NativeAnswer{call.exchange,
                                                  call.context.tokenizer(),
                                                  std::move(request),
                                                  as_array,
                                                  call.context.config.incremental_streaming,
                                                  interval,
                                                  std::vector<Window>(count),
                                                  std::vector<StreamPace>(count)});
  return run_generation(call, std::move(specs), answer, answer->request.stream);
}

}  // namespace

Result<void> handle_generate(Call& call) {
  auto request = parse_generate_request(call.request().body, call.context.limits);
  if (!request) {
    return tl::unexpected(request.error());
  }
  const bool stream = request->stream;
  auto started = start_answer(call, std::move(*request));
  if (!started && stream) {  // upstream: the status stays 200, the error is an event
    call.exchange->start_stream("text/event-stream; charset=utf-8");
    call.exchange->write(error_event(started.error(), ApiStyle::Native));
    call.exchange->write("data: [DONE]\n\n");
    call.exchange->finish();
    return {};
  }
  return started;
}

}  // namespace nibble::server
