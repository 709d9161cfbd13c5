#include "server/chat_prompt.h"

namespace nibble::server {

Result<TokenIds> encode_chat_prompt(const ServerContext& context, const ChatPrompt& prompt) {
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
  text += prompt.continued;
  // The template writes the special tokens itself.
  TokenIds ids = context.text->tokenizer.encode(text, false);
  if (ids.empty()) {
    return invalid("the chat template made an empty prompt of them", "messages");
  }
  return ids;
}

}  // namespace nibble::server
