// Messages to tokens, by the model's chat template.
#pragma once

#include <cstdint>
#include <optional>

#include "server/context.h"
#include "server/endpoints/chat_request.h"

namespace nibble::server {

struct EncodedChat {
  TokenIds ids;
  bool begins_with_reasoning = false;  // as the configured reasoning parser sees the prompt's end
};
Result<EncodedChat> encode_chat_prompt(const ServerContext& context, const ChatPrompt& prompt);
// The same of a prompt that came as tokens.
EncodedChat chat_of_ids(const ServerContext& context, TokenIds ids);

// The template's eos_token (of tokenizer_config.json), where it is one token that the model has: it
// ends answers beside what the model's own configs name, which a fine-tune may have left behind.
std::optional<int32_t> end_token(const text::ChatTemplate& chat_template,
                                 const text::Tokenizer& tokenizer,
                                 int64_t vocab_size);

}  // namespace nibble::server
