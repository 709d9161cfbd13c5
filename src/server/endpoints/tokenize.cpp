// POST /tokenize and /detokenize.
#include <boost/json.hpp>

#include "server/chat_prompt.h"
#include "server/endpoints/chat_request.h"
#include "server/endpoints/endpoints.h"

namespace nibble::server {

namespace json = boost::json;

namespace {

json::array to_json(const TokenIds& ids) { return json::array(ids.begin(), ids.end()); }

}  // namespace

Result<void> handle_tokenize(Call& call) {
  const ServerContext& context = call.context;
  if (context.text == nullptr) {
    return invalid("this server runs without a tokenizer");
  }
  const json::value value = TRY(parse_body(call.request().body));
  const JsonObject body = TRY(JsonObject::from(value, ""));
  const json::value* prompt = body.find("prompt");
  if ((prompt != nullptr) == body.has("messages")) {
    return invalid("expected exactly one of prompt and messages");
  }
  json::object out{
      {"tokens", nullptr}, {"count", nullptr}, {"max_model_len", context.limits.context_length}};
  if (prompt == nullptr) {
    const TokenIds ids = TRY(encode_chat_prompt(context, TRY(read_chat_prompt(body)))).ids;
    out["tokens"] = to_json(ids);
    out["count"] = ids.size();
    respond_json(call, out);
    return {};
  }
  const bool add_special = TRY(body.find_bool("add_special_tokens")).value_or(true);
  const auto texts = TRY(body.find_string_list("prompt")).value_or(std::vector<std::string>{});
  json::array tokens;
  json::array counts;
  for (const std::string& text : texts) {
    const TokenIds ids = context.text->tokenizer.encode(text, add_special);
    counts.push_back(ids.size());
    tokens.push_back(to_json(ids));
  }
  const bool batch = prompt->is_array();
  if (batch) {
    out["tokens"] = std::move(tokens);
    out["count"] = std::move(counts);
  } else {
    out["tokens"] = tokens[0];
    out["count"] = counts[0];
  }
  respond_json(call, out);
  return {};
}

Result<void> handle_detokenize(Call& call) {
  const ServerContext& context = call.context;
  if (context.text == nullptr) {
    return invalid("this server runs without a tokenizer");
  }
  const json::value value = TRY(parse_body(call.request().body));
  const JsonObject body = TRY(JsonObject::from(value, ""));
  const bool skip_special = TRY(body.find_bool("skip_special_tokens")).value_or(true);
  const json::value* tokens = body.find("tokens");
  if (tokens == nullptr) {
    return invalid("required but missing", "tokens");
  }
  const bool batch =
      tokens->is_array() && !tokens->get_array().empty() && tokens->get_array()[0].is_array();
  RequestLimits limits = context.limits;
  limits.vocab_size = std::max<int64_t>(limits.vocab_size, context.text->tokenizer.vocab_size());
  json::array texts;
  const size_t count = batch ? tokens->get_array().size() : 1;
  for (size_t i = 0; i < count; ++i) {
    const TokenIds ids =
        batch ? TRY(read_token_ids(
                    tokens->get_array()[i], "tokens[" + std::to_string(i) + "]", limits))
              : TRY(read_token_ids(*tokens, "tokens", limits));
    texts.push_back(json::value(context.text->tokenizer.decode(ids, skip_special)));
  }
  respond_json(call, json::object{{"text", batch ? json::value(std::move(texts)) : texts[0]}});
  return {};
}

}  // namespace nibble::server
