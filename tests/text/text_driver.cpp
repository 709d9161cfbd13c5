// Answers JSON lines on stdin with JSON lines on stdout, for tools/parity: the differential tests
// against the Python tokenizers and jinja2. Requests:
//   {"load": path of a tokenizer.json}              -> {"vocab_size": n}
//   {"encode": text, "special": bool}               -> {"ids": [...]}
//   {"decode": [ids], "skip": bool}                 -> {"text": ..., "streamed": ...}
//   {"template": source, "messages": ..., "extra"}  -> {"text": ...}
// and {"error": message} where something is refused.
#include <iostream>
#include <optional>

#include <boost/json.hpp>

#include "text/template/chat_template.h"
#include "text/tokenizer/stream_decoder.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble::text {
namespace {

namespace json = boost::json;

json::object answer(const json::object& request, std::optional<Tokenizer>& tokenizer) {
  if (const auto* path = request.if_contains("load")) {
    auto loaded = Tokenizer::from_file(std::string(path->as_string()));
    if (!loaded) {
      return {{"error", loaded.error().text()}};
    }
    tokenizer = std::move(*loaded);
    return {{"vocab_size", tokenizer->vocab_size()}};
  }
  if (const auto* text = request.if_contains("encode")) {
    const auto ids = tokenizer->encode(text->as_string(), request.at("special").as_bool());
    return {{"ids", json::array(ids.begin(), ids.end())}};
  }
  if (const auto* list = request.if_contains("decode")) {
    const auto ids = json::value_to<std::vector<int32_t>>(*list);
    const bool skip = request.at("skip").as_bool();
    StreamDecoder decoder(*tokenizer, skip);
    std::string streamed;
    for (const int32_t id : ids) {
      streamed += decoder.push(id);
    }
    streamed += decoder.finish();
    return {{"text", tokenizer->decode(ids, skip)}, {"streamed", streamed}};
  }
  auto parsed = ChatTemplate::parse(std::string(request.at("template").as_string()), "<s>", "</s>");
  if (!parsed) {
    return {{"error", parsed.error().text()}};
  }
  const auto text =
      parsed->render(request.at("messages"), nullptr, false, request.at("extra").as_object());
  if (!text) {
    return {{"error", text.error().text()}};
  }
  return {{"text", *text}};
}

}  // namespace
}  // namespace nibble::text

int main() {
  std::optional<nibble::text::Tokenizer> tokenizer;
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto request = boost::json::parse(line);
    std::cout << boost::json::serialize(nibble::text::answer(request.as_object(), tokenizer))
              << "\n"
              << std::flush;
  }
  return 0;
}
