#include "server/request_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace nibble::server {

namespace json = boost::json;

namespace {

constexpr size_t kMaxStops = 128;
constexpr size_t kMaxStopBytes = 4096;
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

struct Range {
  double low;
  double high;
  bool open_low = false;  // low itself is not allowed
};

Result<float> number_in(const JsonObject& fields,
                        std::string_view key,
                        double fallback,
                        Range range) {
  const double value = TRY(fields.find_double(key)).value_or(fallback);
  const bool above = range.open_low ? value > range.low : value >= range.low;
  if (!std::isfinite(value) || !above || value > range.high) {
    return invalid("expected a number in " + std::string(range.open_low ? "(" : "[") +
                       format_number(range.low) + ", " + format_number(range.high) + "], found " +
                       format_number(value),
                   fields.path_of(key));
  }
  return static_cast<float>(value);
}

Result<std::vector<std::pair<int32_t, float>>> read_logit_bias(const JsonObject& fields,
                                                               const RequestLimits& limits) {
  std::vector<std::pair<int32_t, float>> bias;
  const auto object = TRY(fields.find_object("logit_bias"));
  if (!object) {
    return bias;
  }
  for (const auto& entry : object->raw()) {
    const std::string_view key(entry.key().data(), entry.key().size());
    int64_t id = -1;
    const auto [end, code] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (code != std::errc{} || end != key.data() + key.size()) {
      return invalid("expected token ids as keys, found '" + std::string(key) + "'",
                     object->path());
    }
    if (id < 0 || id >= limits.vocab_size) {
      return invalid("token id " + std::to_string(id) + " is outside the vocabulary of " +
                         std::to_string(limits.vocab_size),
                     object->path());
    }
    constexpr double kLimit = 1e6;  // upstream has none; OpenAI's is 100
    bias.emplace_back(static_cast<int32_t>(id), TRY(number_in(*object, key, 0, {-kLimit, kLimit})));
  }
  return bias;
}

Result<std::vector<std::string>> read_stops(const JsonObject& fields) {
  auto stops = TRY(fields.find_string_list("stop")).value_or(std::vector<std::string>{});
  if (stops.size() > kMaxStops) {
    return invalid("expected at most " + std::to_string(kMaxStops) + " stop strings, found " +
                       std::to_string(stops.size()),
                   fields.path_of("stop"));
  }
  for (const std::string& stop : stops) {
    if (stop.empty()) {
      return invalid("a stop string must not be empty; leave it out", fields.path_of("stop"));
    }
    if (stop.size() > kMaxStopBytes) {
      return invalid("a stop string has " + std::to_string(stop.size()) + " bytes; at most " +
                         std::to_string(kMaxStopBytes) + " are accepted",
                     fields.path_of("stop"));
    }
  }
  return stops;
}

// Absent: the dialect's default. Null: no limit but the context.
Result<std::optional<int64_t>> read_max_new_tokens(const JsonObject& fields,
                                                   SamplingDialect dialect) {
  const auto limit = [&](std::string_view key, int64_t low) -> Result<std::optional<int64_t>> {
    return std::optional(TRY(int_in_range(fields, key, 0, low, kMaxTokens)));
  };
  if (dialect == SamplingDialect::Native) {
    if (fields.has("max_new_tokens")) {
      return limit("max_new_tokens", 0);
    }
    const bool is_null = fields.raw().if_contains("max_new_tokens") != nullptr;
    return is_null ? std::nullopt : std::optional<int64_t>(128);
  }
  if (dialect == SamplingDialect::Chat) {
    for (const std::string_view key : {"max_completion_tokens", "max_tokens"}) {
      if (fields.has(key)) {
        return limit(key, 1);
      }
    }
    return std::optional<int64_t>{};
  }
  return fields.has("max_tokens") ? limit("max_tokens", 1) : std::optional<int64_t>(16);
}

Result<std::optional<uint64_t>> read_seed(const JsonObject& fields, std::string_view key) {
  const json::value* value = fields.find(key);
  if (value != nullptr && value->is_uint64()) {
    return std::optional(value->get_uint64());
  }
  const auto seed = TRY(fields.find_int(key));
  return seed ? std::optional(static_cast<uint64_t>(*seed)) : std::nullopt;
}

bool asks_for_something(const json::value& value) {
  if (value.is_null() || (value.is_bool() && !value.get_bool())) {
    return false;
  }
  if (value.is_array()) {
    return !value.get_array().empty();
  }
  if (value.is_object()) {
    return !value.get_object().empty();
  }
  return !value.is_string() || !value.get_string().empty();
}

}  // namespace

Result<json::value> parse_body(std::string_view body) {
  auto value = TRY(parse_json(body, "body"));
  if (!value.is_object()) {
    return invalid("expected a JSON object, found " + std::string(json_kind_name(value)), "body");
  }
  return value;
}

Result<int64_t> int_in_range(
    const JsonObject& fields, std::string_view key, int64_t fallback, int64_t low, int64_t high) {
  const auto value = TRY(fields.find_int(key));
  if (value && (*value < low || *value > high)) {
    return invalid("expected an integer in [" + std::to_string(low) + ", " + std::to_string(high) +
                       "], found " + std::to_string(*value),
                   fields.path_of(key));
  }
  return value.value_or(fallback);
}

Result<Sampling> read_sampling(const JsonObject& fields,
                               SamplingDialect dialect,
                               const RequestLimits& limits) {
  const bool native = dialect == SamplingDialect::Native;
  const SamplingDefaults defaults =
      dialect == SamplingDialect::Chat ? limits.defaults : SamplingDefaults{};
  constexpr double kMax = std::numeric_limits<float>::max();
  Sampling out;
  engine::SamplingParams& params = out.params;
  params.temperature = TRY(number_in(fields, "temperature", defaults.temperature, {0, kMax}));
  if (params.temperature < 1e-6f) {
    params.temperature = 0;  // greedy
  }
  params.top_p = TRY(number_in(fields, "top_p", defaults.top_p, {0, 1, true}));
  params.top_k =
      static_cast<int32_t>(TRY(int_in_range(fields, "top_k", defaults.top_k, -1, kMaxTokens)));
  if (params.top_k == 0) {
    return invalid("expected -1 (all) or at least 1, found 0", fields.path_of("top_k"));
  }
  params.min_p = TRY(number_in(fields, "min_p", defaults.min_p, {0, 1}));
  params.frequency_penalty = TRY(number_in(fields, "frequency_penalty", 0, {-2, 2}));
  params.presence_penalty = TRY(number_in(fields, "presence_penalty", 0, {-2, 2}));
  params.repetition_penalty =
      TRY(number_in(fields, "repetition_penalty", defaults.repetition_penalty, {0, 2, true}));
  params.ignore_eos = TRY(fields.find_bool("ignore_eos")).value_or(false);
  params.logit_bias = TRY(read_logit_bias(fields, limits));
  if (const json::value* ids = fields.find("stop_token_ids")) {
    params.stop_token_ids = TRY(read_token_ids(*ids, fields.path_of("stop_token_ids"), limits));
  }
  out.max_new_tokens = TRY(read_max_new_tokens(fields, dialect));
  params.min_new_tokens =
      static_cast<int32_t>(TRY(int_in_range(fields,
                                            native ? "min_new_tokens" : "min_tokens",
                                            0,
                                            0,
                                            out.max_new_tokens.value_or(limits.context_length))));
  out.seed = TRY(read_seed(fields, native ? "sampling_seed" : "seed"));
  out.n = TRY(int_in_range(fields, "n", 1, 1, limits.max_sequences));
  out.text.stop = TRY(read_stops(fields));
  out.text.no_stop_trim = TRY(fields.find_bool("no_stop_trim")).value_or(false);
  out.text.skip_special_tokens = TRY(fields.find_bool("skip_special_tokens")).value_or(true);
  if (!limits.has_tokenizer && !out.text.stop.empty()) {
    return invalid(
        "stop strings need a tokenizer, and this server runs without one; use "
        "stop_token_ids",
        fields.path_of("stop"));
  }
  static constexpr std::array<std::string_view, 6> kUnsupported = {
      "stop_regex", "json_schema", "regex", "ebnf", "structural_tag", "custom_params"};
  TRY(refuse_fields(fields, kUnsupported));
  return out;
}

Result<std::string> read_extra_key(const JsonObject& body) {
  const std::string salt = TRY(body.find_string("cache_salt")).value_or("");
  return TRY(body.find_string("extra_key")).value_or("") + salt;
}

Result<TokenIds> read_token_ids(const json::value& value,
                                const std::string& path,
                                const RequestLimits& limits) {
  if (!value.is_array()) {
    return invalid("expected a list of token ids, found " + std::string(json_kind_name(value)),
                   path);
  }
  const json::array& array = value.get_array();
  TokenIds ids;
  ids.reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    if (!array[i].is_int64()) {
      return invalid("expected a token id, found " + std::string(json_kind_name(array[i])),
                     path + "[" + std::to_string(i) + "]");
    }
    const int64_t id = array[i].get_int64();
    if (id < 0 || id >= limits.vocab_size) {
      return invalid("token id " + std::to_string(id) + " is out-of-vocabulary, which has " +
                         std::to_string(limits.vocab_size) + " tokens",
                     path + "[" + std::to_string(i) + "]");
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

Result<Prompts> read_prompts(const json::value& value,
                             const std::string& path,
                             const RequestLimits& limits) {
  const auto check_text = [&](const json::value& item,
                              const std::string& where) -> Result<std::string> {
    if (!item.is_string()) {
      return invalid("expected a string, found " + std::string(json_kind_name(item)), where);
    }
    if (!limits.has_tokenizer) {
      return invalid("this server runs without a tokenizer; send token ids", where);
    }
    return std::string(item.get_string());
  };
  Prompts out;
  if (value.is_string()) {
    out.prompts.emplace_back(TRY(check_text(value, path)));
    return out;
  }
  if (!value.is_array()) {
    return invalid(
        "expected a string, a list of strings, a list of token ids or a list of those, "
        "found " +
            std::string(json_kind_name(value)),
        path);
  }
  const json::array& array = value.get_array();
  if (array.empty()) {
    return invalid("must not be empty", path);
  }
  if (!array[0].is_string() && !array[0].is_array()) {
    out.prompts.emplace_back(TRY(read_token_ids(value, path, limits)));
    return out;
  }
  out.batch = true;
  if (static_cast<int64_t>(array.size()) > limits.max_sequences) {
    return invalid("expected at most " + std::to_string(limits.max_sequences) + " prompts, found " +
                       std::to_string(array.size()),
                   path);
  }
  for (size_t i = 0; i < array.size(); ++i) {
    const std::string where = path + "[" + std::to_string(i) + "]";
    if (array[0].is_string()) {
      out.prompts.emplace_back(TRY(check_text(array[i], where)));
      continue;
    }
    out.prompts.emplace_back(TRY(read_token_ids(array[i], where, limits)));
    if (std::get<TokenIds>(out.prompts.back()).empty()) {
      return invalid("must not be empty", where);
    }
  }
  return out;
}

Result<void> refuse_fields(const JsonObject& fields, std::span<const std::string_view> names) {
  for (const std::string_view name : names) {
    const json::value* value = fields.find(name);
    if (value != nullptr && asks_for_something(*value)) {
      return invalid("not supported by this server", fields.path_of(name));
    }
  }
  return {};
}

}  // namespace nibble::server
