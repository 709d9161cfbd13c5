#include "text/tokenizer/normalize.h"

#include <cstdlib>

#include <utf8proc.h>

#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/unicode.h"

namespace nibble::text {
namespace {

// utf8proc 2.8 takes U+11A7 for a final consonant and loses it behind a syllable. The character
// composes with nothing, so the text is normalized in parts around it.
constexpr std::string_view kHangulOYae = "\xE1\x86\xA7";

std::string to_form(std::string_view text, UnicodeForm form) {
  if (is_ascii(text)) {
    return std::string(text);
  }
  if (const size_t at = text.find(kHangulOYae); at != std::string_view::npos) {
    std::string out;
    size_t done = 0;
    for (size_t next = at; next != std::string_view::npos; next = text.find(kHangulOYae, done)) {
      out += to_form(text.substr(done, next - done), form);
      out += kHangulOYae;
      done = next + kHangulOYae.size();
    }
    return out + to_form(text.substr(done), form);
  }
  int options = UTF8PROC_STABLE | (form.compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
  if (form.compatibility) {
    options |= UTF8PROC_COMPAT;
  }
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()),
                   &mapped,
                   static_cast<utf8proc_option_t>(options));
  if (length < 0) {
    throw SystemError(std::string("unicode normalization failed: ") + utf8proc_errmsg(length));
  }
  std::string result(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
  std::free(mapped);  // utf8proc allocates with malloc
  return result;
}

template <typename Keep>
std::string map_characters(std::string_view text, const Keep& write) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    write(out, step.code);
    i += step.length;
  }
  return out;
}

std::string lowercase(std::string_view text) {
  return map_characters(text, [](std::string& out, char32_t code) {
    if (code == 0x130) {  // the one character whose lowercase is two (SpecialCasing.txt)
      out += "i\xCC\x87";
    } else {
      append_utf8(out,
                  static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
    }
  });
}

std::string strip_ends(std::string_view text, StripEnds ends) {
  if (ends.left) {
    text.remove_prefix(length_of_leading_space(text));
  }
  if (ends.right) {
    text = text.substr(0, begin_of_trailing_space(text));
  }
  return std::string(text);
}

struct ApplyStep {
  std::string text;

  std::string operator()(const UnicodeForm& form) { return to_form(text, form); }
  std::string operator()(const Lowercase& /*step*/) { return lowercase(text); }
  std::string operator()(const StripAccents& /*step*/) {
    return map_characters(text, [](std::string& out, char32_t code) {
      if (!is_unicode_mark(code)) {
        append_utf8(out, code);
      }
    });
  }
  std::string operator()(const StripEnds& ends) { return strip_ends(text, ends); }
  std::string operator()(const PrependText& step) {
    return text.empty() ? std::string() : step.prefix + text;
  }
  std::string operator()(const ReplaceText& step) {
    return replace_matches(step.pattern, text, step.content);
  }
  std::string operator()(const ByteAlphabetText& /*step*/) { return bytes_to_alphabet(text); }
};

}  // namespace

std::string replace_matches(const Regex& pattern, std::string_view text, std::string_view content) {
  RegexMatcher matcher(pattern);
  matcher.reset(text);
  std::string out;
  size_t done = 0;
  while (const auto match = matcher.next()) {
    out.append(text, done, match->begin - done);
    out.append(content);
    done = match->end;
  }
  out.append(text, done);
  return out;
}

std::string Normalizer::apply(std::string text) const {
  for (const NormalizeStep& step : steps_) {
    text = std::visit(ApplyStep{std::move(text)}, step);
  }
  return text;
}

}  // namespace nibble::text
