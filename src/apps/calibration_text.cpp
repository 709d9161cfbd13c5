#include "apps/calibration_text.h"

#include <algorithm>
#include <string_view>

#include "base/file.h"
#include "base/json.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/unicode.h"

namespace nibble::apps {

namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 30;

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// One conversation a line; blank lines are skipped.
Result<std::vector<int32_t>> chat_tokens(const std::string& path,
                                         std::string_view content,
                                         const std::string& model_dir,
                                         const text::Tokenizer& tokenizer,
                                         size_t wanted) {
  const auto chat_template = TRY(text::load_chat_template(model_dir));
  std::vector<int32_t> tokens;
  size_t number = 0;
  while (!content.empty() && tokens.size() < wanted) {
    const size_t end = std::min(content.find('\n'), content.size());
    const std::string_view line = content.substr(0, end);
    content.remove_prefix(std::min(end + 1, content.size()));
    const std::string where = path + ":" + std::to_string(++number);
    if (is_blank(line)) {
      continue;
    }
    const auto value = TRY(parse_json(line, where));
    const auto object = TRY(JsonObject::from(value, where));
    const boost::json::value* messages = object.find("messages");
    if (messages == nullptr || !messages->is_array()) {
      return invalid("expected an array of messages", object.path_of("messages"));
    }
    auto rendered = chat_template.render(*messages, nullptr, false, {});
    if (!rendered) {
      Error error = rendered.error();
      error.where = where;
      return tl::unexpected<Error>(std::move(error));
    }
    const std::vector<int32_t> ids = tokenizer.encode(*rendered, false);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }
  return tokens;
}

}  // namespace

Result<std::vector<int32_t>> read_calibration_tokens(const std::string& path,
                                                     const std::string& model_dir,
                                                     int64_t max_tokens) {
  const std::string content = TRY(read_text_file(path, kMaxFileBytes));
  if (is_blank(content)) {
    return invalid("expected calibration text, found an empty file", path);
  }
  if (!text::is_valid_utf8(content)) {
    return invalid("is not UTF-8 text", path);
  }
  const auto tokenizer = TRY(text::Tokenizer::from_file(model_dir + "/tokenizer.json"));
  const auto wanted = static_cast<size_t>(max_tokens);
  std::vector<int32_t> tokens = path.ends_with(".jsonl")
                                    ? TRY(chat_tokens(path, content, model_dir, tokenizer, wanted))
                                    : tokenizer.encode(content, false);
  tokens.resize(std::min(tokens.size(), wanted));
  return tokens;
}

}  // namespace nibble::apps
