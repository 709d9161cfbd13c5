#include "apps/load_text.h"

#include <utility>

#include "base/file.h"
#include "base/json.h"

namespace nibble::apps {

Result<server::TextModel> load_text_model(const std::string& directory,
                                          const std::string& chat_template) {
  const std::string path = directory + "/tokenizer.json";
  if (!file_exists(path)) {
    return fail(ErrorCode::NotFound,
                "not found; give --tokenizer-path, or serve token ids with --skip-tokenizer-init",
                path);
  }
  server::TextModel model{TRY(text::Tokenizer::from_file(path)), std::nullopt};
  if (!chat_template.empty()) {
    model.chat_template = TRY(text::load_chat_template(directory, chat_template));
    return model;
  }
  auto found = text::load_chat_template(directory);
  if (found) {
    model.chat_template = std::move(*found);
  } else if (found.error().code != ErrorCode::NotFound) {
    return tl::unexpected(found.error());
  }
  return model;
}

Result<server::SamplingDefaults> load_sampling_defaults(const std::string& directory) {
  server::SamplingDefaults defaults;
  const std::string path = directory + "/generation_config.json";
  if (!file_exists(path)) {
    return defaults;
  }
  const boost::json::value value = TRY(parse_json_file(path));
  const JsonObject config = TRY(JsonObject::from(value, path));
  const auto number = [&](std::string_view key, float fallback) -> Result<float> {
    return static_cast<float>(TRY(config.find_double(key)).value_or(fallback));
  };
  defaults.temperature = TRY(number("temperature", defaults.temperature));
  defaults.top_p = TRY(number("top_p", defaults.top_p));
  defaults.min_p = TRY(number("min_p", defaults.min_p));
  defaults.repetition_penalty = TRY(number("repetition_penalty", defaults.repetition_penalty));
  const int64_t top_k = TRY(config.find_int("top_k")).value_or(-1);
  defaults.top_k = top_k > 0 ? static_cast<int32_t>(top_k) : -1;  // transformers: 0 means all
  return defaults;
}

std::vector<Error> text_problems(const std::string& directory, bool with_tokenizer) {
  std::vector<Error> problems;
  if (auto defaults = load_sampling_defaults(directory); !defaults) {
    problems.push_back(std::move(defaults).error());
  }
  if (with_tokenizer && file_exists(directory + "/tokenizer.json")) {
    if (auto text = load_text_model(directory, {}); !text) {
      problems.push_back(std::move(text).error());
    }
  }
  return problems;
}

}  // namespace nibble::apps
