// Messages to tokens, by the model's chat template.
#pragma once

#include "server/context.h"
#include "server/endpoints/chat_request.h"

namespace nibble::server {

Result<TokenIds> encode_chat_prompt(const ServerContext& context, const ChatPrompt& prompt);

}  // namespace nibble::server
