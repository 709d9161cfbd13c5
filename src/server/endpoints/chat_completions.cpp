// POST /v1/chat/completions: OpenAI's chat.
#include <algorithm>

#include <boost/json.hpp>

#include "server/chat_message.h"
#include "server/chat_prompt.h"
#include "server/endpoints/chat_request.h"
#include "server/endpoints/endpoints.h"
#include "server/openai_answer.h"
#include "server/run_generation.h"

namespace nibble::server {

namespace json = boost::json;

namespace {

class ChatAnswer final : public OpenAiAnswer {
 public:
  ChatAnswer(const Call& call, const ChatRequest& request, ChatParsing parsing)
      : OpenAiAnswer(call,
                     {"chat.completion", "chat.completion.chunk"},
                     make_head(call.context, request.options, "chatcmpl-"),
                     request.options,
                     request.sampling.n,
                     static_cast<size_t>(request.sampling.n)),
        with_logprobs_(request.logprobs),
        parsing_(std::move(parsing)) {
    for (int64_t i = 0; i < request.sampling.n; ++i) {
      shown_.push_back({ChatMessage(parsing_)});
    }
  }

 private:
  struct Shown {
    ChatMessage message;
    size_t tokens = 0;
    size_t bytes = 0;
    size_t calls = 0;
    bool began = false;
  };

  json::object whole_choice(const Sequence& sequence, size_t index) override;
  void stream_news(const Generation& generation, size_t index) override;
  size_t reasoning_tokens(const Sequence& sequence) const override;
  void send_delta(const Generation& generation, size_t index, json::object delta);

  json::value logprobs(const Sequence& sequence, size_t from_token) const;
  json::value finish_reason(const Sequence& sequence, size_t num_calls) const;

  bool with_logprobs_;
  ChatParsing parsing_;
  std::vector<Shown> shown_;  // what a stream has sent, a sequence each
};

json::value ChatAnswer::logprobs(const Sequence& sequence, size_t from_token) const {
  if (!with_logprobs_) {
    return nullptr;
  }
  return json::object{{"content", chat_logprobs(tokenizer(), logprobs_from(sequence, from_token))}};
}

// Whoever reads tool_calls goes on by running them.
json::value ChatAnswer::finish_reason(const Sequence& sequence, size_t num_calls) const {
  json::value reason = finish_reason_json(sequence);
  return num_calls > 0 && reason == "stop" ? json::value("tool_calls") : reason;
}

json::object call_json(const text::ToolCall& call, size_t index) {
  return {{"index", index},
          {"id", make_tool_call_id()},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

json::object ChatAnswer::whole_choice(const Sequence& sequence, size_t index) {
  ChatMessage message(parsing_);
  ChatDelta parts = message.push(sequence.text.text());
  parts.append(message.finish());
  json::array calls;
  for (const text::ToolCall& call : parts.calls) {
    calls.push_back(call_json(call, calls.size()));
  }
  const bool only_calls = !calls.empty() && parts.content.empty();
  return {{"index", index},
          {"message",
           {{"role", "assistant"},
            {"content", only_calls ? json::value(nullptr) : json::value(parts.content)},
            {"reasoning_content",
             parts.reasoning.empty() ? json::value(nullptr) : json::value(parts.reasoning)},
            {"tool_calls", calls.empty() ? json::value(nullptr) : json::value(calls)}}},
          {"logprobs", logprobs(sequence, 0)},
          {"finish_reason", finish_reason(sequence, parts.calls.size())},
          {"matched_stop", matched_stop_json(sequence)}};
}

// The logprobs of tokens go out with the first delta after them, whatever that holds.
void ChatAnswer::send_delta(const Generation& generation, size_t index, json::object delta) {
  const Sequence& sequence = generation.sequences()[index];
  Shown& shown = shown_[index];
  send(generation,
       {{"index", index},
        {"delta", std::move(delta)},
        {"logprobs", logprobs(sequence, shown.tokens)},
        {"finish_reason", nullptr},
        {"matched_stop", nullptr}});
  shown.tokens = sequence.tokens.size();
}

void ChatAnswer::stream_news(const Generation& generation, size_t index) {
  const Sequence& sequence = generation.sequences()[index];
  Shown& shown = shown_[index];
  if (!shown.began) {
    send(generation,
         {{"index", index},
          {"delta", {{"role", "assistant"}, {"content", ""}}},
          {"logprobs", nullptr},
          {"finish_reason", nullptr},
          {"matched_stop", nullptr}});
    shown.began = true;
  }
  const std::string& text = sequence.text.text();
  ChatDelta parts = shown.message.push(std::string_view(text).substr(shown.bytes));
  shown.bytes = text.size();
  if (sequence.done()) {
    parts.append(shown.message.finish());
  }
  if (!parts.reasoning.empty()) {
    send_delta(generation, index, {{"reasoning_content", parts.reasoning}});
  }
  if (!parts.content.empty()) {
    send_delta(generation, index, {{"content", parts.content}});
  }
  for (const text::ToolCall& call : parts.calls) {
    json::array calls;
    calls.push_back(call_json(call, shown.calls++));
    send_delta(generation, index, {{"tool_calls", std::move(calls)}});
  }
  if (with_logprobs_ && sequence.tokens.size() > shown.tokens) {
    send_delta(generation, index, {{"content", ""}});
  }
  if (sequence.done()) {
    send(generation,
         {{"index", index},
          {"delta", json::object{}},
          {"logprobs", nullptr},
          {"finish_reason", finish_reason(sequence, shown.calls)},
          {"matched_stop", matched_stop_json(sequence)}});
  }
}

// Where </think> is a token of its own, as in all models that think; else not known, and 0.
size_t ChatAnswer::reasoning_tokens(const Sequence& sequence) const {
  if (!parsing_.reasoning || tokenizer() == nullptr) {
    return 0;
  }
  const auto begin = tokenizer()->token_id(text::kThinkBegin);
  const auto end = tokenizer()->token_id(text::kThinkEnd);
  const std::vector<int32_t>& tokens = sequence.tokens;
  const bool thinks =
      parsing_.begins_with_reasoning || (begin && !tokens.empty() && tokens.front() == *begin);
  if (!end || !thinks) {
    return 0;
  }
  const auto found = std::find(tokens.begin(), tokens.end(), *end);
  return static_cast<size_t>(found - tokens.begin()) + (found == tokens.end() ? 0 : 1);
}

ChatParsing make_parsing(const ServerContext& context,
                         const ChatRequest& request,
                         bool begins_with_reasoning) {
  ChatParsing parsing;
  parsing.reasoning = !context.config.reasoning_parser.empty() && request.separate_reasoning;
  parsing.begins_with_reasoning = begins_with_reasoning;
  parsing.stream_reasoning = request.stream_reasoning;
  if (request.prompt.tools) {
    parsing.tool_dialect = context.config.tool_call_parser;
    parsing.tool_schemas = text::ToolSchemas(*request.prompt.tools);
    parsing.one_call = !request.parallel_tool_calls;
  }
  return parsing;
}

// Markers that are special tokens must stay in the text to be found.
bool markers_are_special(const text::Tokenizer& tokenizer, const ChatParsing& parsing) {
  const auto is_special = [&](std::string_view marker) {
    const auto id = marker.empty() ? std::nullopt : tokenizer.token_id(marker);
    return id && tokenizer.is_special(*id);
  };
  return is_special(text::tool_call_marker(parsing.tool_dialect)) ||
         (parsing.reasoning && (is_special(text::kThinkBegin) || is_special(text::kThinkEnd)));
}

}  // namespace

Result<void> handle_chat_completions(Call& call) {
  ServerContext& context = call.context;
  ChatRequest request = TRY(parse_chat_request(call.request().body, context.limits));
  const EncodedChat prompt = request.input_ids ? chat_of_ids(context, std::move(*request.input_ids))
                                               : TRY(encode_chat_prompt(context, request.prompt));
  if (prompt.ids.empty()) {
    return invalid("must not be empty", "input_ids");
  }
  ChatParsing parsing = make_parsing(context, request, prompt.begins_with_reasoning);
  if (context.text != nullptr && markers_are_special(context.text->tokenizer, parsing)) {
    request.sampling.text.skip_special_tokens = false;
  }
  auto answer = std::make_shared<ChatAnswer>(call, request, std::move(parsing));

  std::vector<SequenceSpec> specs;
  const auto count = static_cast<size_t>(request.sampling.n);
  const uint64_t seed = request.sampling.seed ? *request.sampling.seed : context.make_seed();
  for (size_t k = 0; k < count; ++k) {
    SequenceSpec spec = TRY(make_spec(
        context, request.sampling, prompt.ids, "messages", seed, static_cast<int64_t>(k)));
    spec.rid = sequence_rid(answer->head(), k, count);
    spec.logprobs.output = request.logprobs;
    spec.logprobs.top = static_cast<int32_t>(request.top_logprobs);
    spec.extra_key = request.options.extra_key;
    specs.push_back(std::move(spec));
  }
  return run_generation(call, std::move(specs), answer, request.options.stream);
}

}  // namespace nibble::server
