#include "checkpoint/name_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace nibble::checkpoint {

namespace {

constexpr std::string_view kRegexPrefix = "re:";
constexpr std::string_view kWrapper = "language_model.";
// A hostile expression gives up instead of running for minutes; real ones need a few hundred steps.
constexpr uint32_t kMatchLimit = 200'000;
constexpr uint32_t kDepthLimit = 10'000;

std::string_view without_suffix(std::string_view text, std::string_view suffix) {
  return text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : text;
}

bool regex_matches(const pcre2_code* code, std::string_view text) {
  pcre2_match_data* match = pcre2_match_data_create_from_pattern(code, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(context, kMatchLimit);
  pcre2_set_depth_limit(context, kDepthLimit);
  const int result = pcre2_match(code,
                                 reinterpret_cast<PCRE2_SPTR>(text.data()),
                                 text.size(),
                                 0,
                                 PCRE2_ANCHORED,
                                 match,
                                 context);
  pcre2_match_context_free(context);
  pcre2_match_data_free(match);
  return result >= 0;
}

}  // namespace

bool glob_matches(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;
  size_t star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || (pattern[p] != '*' && pattern[p] == text[t]))) {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') {
    ++p;
  }
  return p == pattern.size();
}

std::string without_wrapper(std::string_view name) {
  if (name.starts_with(kWrapper)) {
    return std::string(name.substr(kWrapper.size()));
  }
  constexpr std::string_view kRoot = "model.";
  if (name.starts_with(kRoot) && name.substr(kRoot.size()).starts_with(kWrapper)) {
    return std::string(kRoot) + std::string(name.substr(kRoot.size() + kWrapper.size()));
  }
  return std::string(name);
}

Result<NamePattern> NamePattern::compile(std::string_view text) {
  NamePattern pattern;
  pattern.text_ = std::string(text);
  if (text.starts_with(kRegexPrefix)) {
    const std::string_view expression = text.substr(kRegexPrefix.size());
    int error_code = 0;
    PCRE2_SIZE error_offset = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()),
                                     expression.size(),
                                     0,
                                     &error_code,
                                     &error_offset,
                                     nullptr);
    if (code == nullptr) {
      PCRE2_UCHAR message[128] = {};
      pcre2_get_error_message(error_code, message, sizeof message);
      return invalid("'" + std::string(text.substr(0, 200)) +
                     "' is not a regular expression: " + reinterpret_cast<const char*>(message) +
                     " at " + std::to_string(error_offset));
    }
    pattern.regex_ = std::shared_ptr<const void>(code, [](const void* p) {
      pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p)));
    });
    return pattern;
  }
  std::string_view name = without_suffix(without_suffix(text, ".weight"), ".");
  pattern.glob_ = without_wrapper(name);
  pattern.has_wildcard_ = pattern.glob_.find_first_of("*?") != std::string::npos;
  return pattern;
}

bool NamePattern::matches(std::string_view module) const {
  if (regex_ != nullptr) {
    return regex_matches(static_cast<const pcre2_code*>(regex_.get()), module);
  }
  if (glob_.empty()) {
    return false;
  }
  const std::string name = without_wrapper(module);
  if (!has_wildcard_) {
    return name == glob_ ||
           (name.size() > glob_.size() && name[glob_.size()] == '.' && name.starts_with(glob_));
  }
  if (glob_matches(glob_, name)) {
    return true;
  }
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    if (glob_matches(glob_, std::string_view(name).substr(0, dot))) {
      return true;
    }
  }
  return glob_.ends_with(".*") && glob_matches(without_suffix(glob_, ".*"), name);
}

}  // namespace nibble::checkpoint
