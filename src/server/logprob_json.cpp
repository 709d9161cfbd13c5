#include "server/logprob_json.h"

#include <algorithm>
#include <cmath>

#include "server/utf8.h"

namespace nibble::server {

namespace json = boost::json;

namespace {

constexpr double kMinusInfinity = -9999.0;

json::value text_or_null(const text::Tokenizer* tokenizer, int32_t token, bool with_text) {
  if (!with_text || tokenizer == nullptr) {
    return nullptr;
  }
  return json::value(token_string(tokenizer, token));
}

json::array token_bytes_json(const text::Tokenizer* tokenizer, int32_t token) {
  json::array bytes;
  if (tokenizer != nullptr) {
    for (const char byte : tokenizer->token_bytes(token)) {
      bytes.push_back(static_cast<int>(static_cast<unsigned char>(byte)));
    }
  }
  return bytes;
}

}  // namespace

std::string token_string(const text::Tokenizer* tokenizer, int32_t token) {
  return tokenizer != nullptr ? to_valid_utf8(tokenizer->token_bytes(token)) : std::string();
}

json::value logprob_number(float logprob) {
  if (std::isnan(logprob)) {
    return nullptr;
  }
  return std::isinf(logprob) ? kMinusInfinity : static_cast<double>(logprob);
}

json::array native_token_logprobs(const text::Tokenizer* tokenizer,
                                  const LogprobRun& run,
                                  bool with_text) {
  json::array out;
  for (size_t i = 0; i < run.positions.size(); ++i) {
    const auto& token = run.positions[i].token;
    out.push_back(json::array{token ? logprob_number(token->logprob) : json::value(nullptr),
                              run.tokens[i],
                              text_or_null(tokenizer, run.tokens[i], with_text)});
  }
  return out;
}

json::array native_extra_logprobs(const text::Tokenizer* tokenizer,
                                  const LogprobRun& run,
                                  Extra which,
                                  bool with_text) {
  json::array out;
  for (const engine::PositionLogprobs& position : run.positions) {
    const auto& entries = which == Extra::Top ? position.top : position.chosen;
    if (!position.token && entries.empty()) {
      out.push_back(nullptr);
      continue;
    }
    json::array list;
    for (const engine::TokenLogprob& entry : entries) {
      list.push_back(json::array{logprob_number(entry.logprob),
                                 entry.token,
                                 text_or_null(tokenizer, entry.token, with_text)});
    }
    out.push_back(std::move(list));
  }
  return out;
}

json::object completion_logprobs(const text::Tokenizer* tokenizer,
                                 std::span<const LogprobRun> runs) {
  json::array tokens;
  json::array numbers;
  json::array top;
  json::array offsets;
  for (const LogprobRun& run : runs) {
    for (size_t i = 0; i < run.positions.size(); ++i) {
      const engine::PositionLogprobs& position = run.positions[i];
      tokens.push_back(json::value(token_string(tokenizer, run.tokens[i])));
      numbers.push_back(position.token ? logprob_number(position.token->logprob)
                                       : json::value(nullptr));
      offsets.push_back(-1);
      if (position.top.empty()) {
        top.push_back(nullptr);
        continue;
      }
      json::object alternatives;
      for (const engine::TokenLogprob& entry : position.top) {
        // The first of equal texts is the likelier one.
        alternatives.emplace(token_string(tokenizer, entry.token), logprob_number(entry.logprob));
      }
      top.push_back(std::move(alternatives));
    }
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(numbers)},
          {"top_logprobs", std::move(top)},
          {"text_offset", std::move(offsets)}};
}

json::array chat_logprobs(const text::Tokenizer* tokenizer, const LogprobRun& run) {
  const auto entry_json = [&](int32_t token, const json::value& logprob) {
    return json::object{{"token", token_string(tokenizer, token)},
                        {"bytes", token_bytes_json(tokenizer, token)},
                        {"logprob", logprob}};
  };
  json::array out;
  for (size_t i = 0; i < run.positions.size(); ++i) {
    const engine::PositionLogprobs& position = run.positions[i];
    json::array top;
    for (const engine::TokenLogprob& entry : position.top) {
      top.push_back(entry_json(entry.token, logprob_number(entry.logprob)));
    }
    json::object item =
        entry_json(run.tokens[i],
                   position.token ? logprob_number(position.token->logprob) : json::value(nullptr));
    item["top_logprobs"] = std::move(top);
    out.push_back(std::move(item));
  }
  return out;
}

}  // namespace nibble::server
