#include "apps/calibration_text.h"

#include <algorithm>
#include <limits>
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

// The text of one line: a conversation by the model's template, which is loaded for the first, or a
// prompt as it is. One of both, so that nobody is measured on a text he did not mean.
Result<std::string> text_of_line(std::string_view line,
                                 const std::string& model_dir,
                                 std::optional<text::ChatTemplate>& chat_template,
                                 const std::string& where) {
  const auto value = TRY(parse_json(line, where));
  const auto object = TRY(JsonObject::from(value, where));
  const boost::json::value* prompt = object.find("prompt");
  const boost::json::value* messages = object.find("messages");
  if (prompt != nullptr && messages != nullptr) {
    return invalid("expected either prompt or messages, found both", where);
  }
  if (prompt != nullptr) {
    if (!prompt->is_string()) {
      return invalid("expected a text", object.path_of("prompt"));
    }
    return std::string(prompt->get_string());
  }
  if (messages == nullptr || !messages->is_array()) {
    return invalid("expected an array of messages", object.path_of("messages"));
  }
  if (!chat_template) {
    chat_template = TRY(text::load_chat_template(model_dir));
  }
  auto rendered = chat_template->render(*messages, nullptr, false, {});
  if (!rendered) {
    Error error = rendered.error();
    error.where = where;
    return tl::unexpected<Error>(std::move(error));
  }
  return *std::move(rendered);
}

// One conversation a line; blank lines are skipped. Ends once `wanted` tokens are there.
Result<std::vector<std::vector<int32_t>>> chat_tokens(const std::string& path,
                                                      std::string_view content,
                                                      const std::string& model_dir,
                                                      const text::Tokenizer& tokenizer,
                                                      size_t wanted) {
  std::optional<text::ChatTemplate> chat_template;
  std::vector<std::vector<int32_t>> chats;
  size_t tokens = 0;
  size_t number = 0;
  while (!content.empty() && tokens < wanted) {
    const size_t end = std::min(content.find('\n'), content.size());
    const std::string_view line = content.substr(0, end);
    content.remove_prefix(std::min(end + 1, content.size()));
    const std::string where = path + ":" + std::to_string(++number);
    if (!is_blank(line)) {
      chats.push_back(
          tokenizer.encode(TRY(text_of_line(line, model_dir, chat_template, where)), false));
      tokens += chats.back().size();
    }
  }
  return chats;
}

Result<std::string> read_utf8(const std::string& path) {
  std::string content = TRY(read_text_file(path, kMaxFileBytes));
  if (is_blank(content)) {
    return invalid("expected text, found an empty file", path);
  }
  if (!text::is_valid_utf8(content)) {
    return invalid("is not UTF-8 text", path);
  }
  return content;
}

bool holds_chats(const std::string& path) { return path.ends_with(".jsonl"); }

}  // namespace

Result<std::vector<int32_t>> read_calibration_tokens(const std::string& path,
                                                     const std::string& model_dir,
                                                     int64_t max_tokens) {
  const std::string content = TRY(read_utf8(path));
  const auto tokenizer = TRY(text::Tokenizer::from_file(model_dir + "/tokenizer.json"));
  const auto wanted = static_cast<size_t>(max_tokens);
  std::vector<int32_t> tokens;
  if (holds_chats(path)) {
    for (const auto& chat : TRY(chat_tokens(path, content, model_dir, tokenizer, wanted))) {
      tokens.insert(tokens.end(), chat.begin(), chat.end());
    }
  } else {
    tokens = tokenizer.encode(content, false);
  }
  tokens.resize(std::min(tokens.size(), wanted));
  return tokens;
}

Result<examine::EvalWindows> read_windows(const std::string& path,
                                          const std::string& model_dir,
                                          int64_t window,
                                          std::optional<int64_t> windows) {
  const std::string content = TRY(read_utf8(path));
  const auto tokenizer = TRY(text::Tokenizer::from_file(model_dir + "/tokenizer.json"));
  if (!holds_chats(path)) {
    return examine::cut_windows(tokenizer.encode(content, false), {window, windows.value_or(1)});
  }
  if (window < 2) {
    return invalid("expected at least 2, found " + std::to_string(window), "window");
  }
  examine::EvalWindows prompts =
      TRY(chat_tokens(path, content, model_dir, tokenizer, std::numeric_limits<size_t>::max()));
  const auto count = static_cast<int64_t>(prompts.size());
  const int64_t wanted = windows.value_or(count);
  if (wanted < 1 || wanted > count) {
    return invalid("expected 1 to " + std::to_string(count) + ", the prompts of " + path +
                       ", found " + std::to_string(wanted),
                   "windows");
  }
  prompts.resize(static_cast<size_t>(wanted));
  for (std::vector<int32_t>& prompt : prompts) {
    prompt.resize(std::min(prompt.size(), static_cast<size_t>(window)));
  }
  return prompts;
}

}  // namespace nibble::apps
