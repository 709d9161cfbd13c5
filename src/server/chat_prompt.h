// Messages to tokens, by the model's chat template.
#pragma once

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

}  // namespace nibble::server
