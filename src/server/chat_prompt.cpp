#include "server/chat_prompt.h"

#include <algorithm>
#include <span>

#include "text/parse/reasoning.h"

namespace nibble::server {

namespace {

bool begins_with_reasoning(const ServerContext& context, std::string_view prompt_end) {
  const std::string& dialect = context.config.reasoning_parser;
  return !dialect.empty() && text::begins_with_reasoning(dialect, prompt_end);
}

// A message that the model goes on writing may have begun or ended its reasoning itself.
bool continues_reasoning(bool begins, std::string_view continued) {
  if (continued.find(text::kThinkEnd) != std::string_view::npos) {
    return false;
  }
  return begins || text::begins_with_reasoning("", continued.substr(0, text::kThinkBegin.size()));
}

}  // namespace

EncodedChat chat_of_ids(const ServerContext& context, TokenIds ids) {
  EncodedChat chat;
  if (context.text != nullptr) {
    constexpr size_t kEnd = 16;  // more tokens than <think> and the white space around it have
    const auto end = std::span(ids).last(std::min(ids.size(), kEnd));
    chat.begins_with_reasoning =
        begins_with_reasoning(context, context.text->tokenizer.decode(end, false));
  }
  chat.ids = std::move(ids);
  return chat;
}

std::optional<int32_t> end_token(const text::ChatTemplate& chat_template,
                                 const text::Tokenizer& tokenizer,
                                 int64_t vocab_size) {
  const TokenIds ids = tokenizer.encode(chat_template.eos_token(), false);
  return ids.size() == 1 && ids[0] < vocab_size ? std::optional(ids[0]) : std::nullopt;
}

Result<EncodedChat> encode_chat_prompt(const ServerContext& context, const ChatPrompt& prompt) {
  if (context.text == nullptr) {
    return invalid("this server runs without a tokenizer; send input_ids", "messages");
  }
  if (!context.text->chat_template) {
    return invalid(
        "this model has no chat template; use /v1/completions, or start with "
        "--chat-template FILE",
        "messages");
  }
  std::string text =
      TRY(context.text->chat_template->render(prompt.messages,
                                              prompt.tools ? &*prompt.tools : nullptr,
                                              prompt.add_generation_prompt,
                                              prompt.template_kwargs));
  EncodedChat chat;
  chat.begins_with_reasoning = begins_with_reasoning(context, text);
  if (!prompt.continued.empty()) {
    text += prompt.continued;
    chat.begins_with_reasoning = continues_reasoning(chat.begins_with_reasoning, prompt.continued);
  }
  // The template writes the special tokens itself.
  chat.ids = context.text->tokenizer.encode(text, false);
  if (chat.ids.empty()) {
    return invalid("the chat template made an empty prompt of them", "messages");
  }
  return chat;
}

}  // namespace nibble::server
