#include "server/server_fixture.h"

#include <chrono>
#include <thread>
#include <utility>

#include <boost/json.hpp>

#include "base/check.h"

namespace nibble::test {

namespace json = boost::json;

namespace {

std::string utf8(int code_point) {
  if (code_point < 0x80) {
    return std::string(1, static_cast<char>(code_point));
  }
  return {static_cast<char>(0xc0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3f))};
}

// The byte alphabet of byte-level vocabularies: printable bytes stand for themselves, the others
// for characters from U+0100 on.
std::string byte_character(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  if (printable(byte)) {
    return utf8(byte);
  }
  int next = 256;
  for (int b = 0; b < byte; ++b) {
    next += printable(b) ? 0 : 1;
  }
  return utf8(next);
}

json::object special_token(int id, std::string_view content) {
  return {{"id", id},
          {"content", content},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false},
          {"normalized", false},
          {"special", true}};
}

}  // namespace

text::Tokenizer make_byte_tokenizer() {
  json::object vocab;
  for (int byte = 0; byte < 256; ++byte) {
    vocab[byte_character(byte)] = byte;
  }
  const json::object bytes{{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  json::array added;
  added.push_back(special_token(kEos, "<|end|>"));
  added.push_back(special_token(257, "<|user|>"));
  const json::object file{{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", std::move(added)},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", bytes},
                          {"post_processor", nullptr},
                          {"decoder", bytes},
                          {"model",
                           {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", nullptr},
                            {"continuing_subword_prefix", nullptr},
                            {"end_of_word_suffix", nullptr},
                            {"fuse_unk", false},
                            {"byte_fallback", false},
                            {"vocab", std::move(vocab)},
                            {"merges", json::array{}}}}};
  auto tokenizer = text::Tokenizer::from_json(json::serialize(file));
  CHECK(tokenizer.has_value(), tokenizer ? "" : tokenizer.error().text());
  return std::move(*tokenizer);
}

text::ChatTemplate make_plain_template() {
  auto made = text::ChatTemplate::parse(
      "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ", "", "");
  CHECK(made.has_value(), made ? "" : made.error().text());
  return std::move(*made);
}

ServerFixture::ServerFixture(server::ServerConfig config,
                             bool with_text,
                             text::ChatTemplate chat_template) {
  if (with_text) {
    text = std::make_unique<server::TextModel>(
        server::TextModel{make_byte_tokenizer(), std::move(chat_template)});
  }
  config.served_model_name = "fake/model";
  auto started = server::Server::start(std::move(config), engine, text.get());
  CHECK(started.has_value(), started ? "" : started.error().text());
  server = std::move(*started);
}

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 500; ++i) {
    if (condition()) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

}  // namespace nibble::test
