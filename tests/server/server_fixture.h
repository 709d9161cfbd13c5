// A server over the fake engine and a tokenizer whose tokens are bytes.
#pragma once

#include <memory>
#include <string>

#include <boost/json/value.hpp>

#include "server/fake_engine.h"
#include "server/http_client.h"
#include "server/server.h"

namespace nibble::test {

// Token b is byte b; 256 <|end|> is special; 257 is "<|user|>", also special.
text::Tokenizer make_byte_tokenizer();
// Messages as "role: content\n", then "assistant: ".
text::ChatTemplate make_plain_template();

struct ServerFixture {
  explicit ServerFixture(server::ServerConfig config = {},
                         bool with_text = true,
                         text::ChatTemplate chat_template = make_plain_template());

  uint16_t port() const { return server->port(); }
  HttpReply post(std::string_view path, const std::string& body) {
    return http(port(), "POST", path, body);
  }
  HttpReply get(std::string_view path) { return http(port(), "GET", path); }

  FakeEngine engine;
  std::unique_ptr<server::TextModel> text;
  std::unique_ptr<server::Server> server;  // ends first
};

// Waits up to 5 s.
bool eventually(const std::function<bool()>& condition);

}  // namespace nibble::test
