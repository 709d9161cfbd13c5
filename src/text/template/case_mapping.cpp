#include "text/template/case_mapping.h"

#include <cstdlib>
#include <new>

#include <utf8proc.h>

#include "text/tokenizer/unicode.h"

namespace nibble::text::jinja {
namespace {

enum class Case { Upper, Lower, Title };

void append_mapped(std::string& out, char32_t code, Case to) {
  if (code == 0xDF && to != Case::Lower) {
    out += to == Case::Upper ? "SS" : "Ss";
    return;
  }
  if (code == 0x130 && to == Case::Lower) {
    out += "i\xCC\x87";
    return;
  }
  const auto in = static_cast<utf8proc_int32_t>(code);
  append_utf8(out,
              static_cast<char32_t>(to == Case::Upper   ? utf8proc_toupper(in)
                                    : to == Case::Lower ? utf8proc_tolower(in)
                                                        : utf8proc_totitle(in)));
}

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool is_upper(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LL; }

template <typename Choose>
std::string map_case(std::string_view text, const Choose& choose) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    append_mapped(out, step.code, choose(step.code));
    i += step.length;
  }
  return out;
}

template <typename Wanted, typename Other>
bool all_cased(std::string_view text, const Wanted& wanted, const Other& other) {
  bool found = false;
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    if (other(step.code) || category(step.code) == UTF8PROC_CATEGORY_LT) {
      return false;
    }
    found = found || wanted(step.code);
    i += step.length;
  }
  return found;
}

}  // namespace

std::string to_upper(std::string_view text) {
  return map_case(text, [](char32_t /*code*/) { return Case::Upper; });
}

std::string to_lower(std::string_view text) {
  return map_case(text, [](char32_t /*code*/) { return Case::Lower; });
}

std::string case_folded(std::string_view text) {
  utf8proc_uint8_t* folded = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()),
                   &folded,
                   UTF8PROC_CASEFOLD);
  if (length < 0) {
    throw std::bad_alloc();  // the text is valid UTF-8, so memory is all that can lack
  }
  std::string result(reinterpret_cast<const char*>(folded), static_cast<size_t>(length));
  std::free(folded);  // utf8proc allocates with malloc
  return result;
}

std::string swap_case(std::string_view text) {
  return map_case(text, [](char32_t code) { return is_upper(code) ? Case::Lower : Case::Upper; });
}

std::string capitalized(std::string_view text) {
  bool first = true;
  return map_case(text, [&first](char32_t /*code*/) {
    const Case result = first ? Case::Title : Case::Lower;
    first = false;
    return result;
  });
}

std::string title_cased(std::string_view text) {
  bool inside = false;
  return map_case(text, [&inside](char32_t code) {
    const Case result = inside ? Case::Lower : Case::Title;
    inside = is_upper(code) || is_lower(code) || category(code) == UTF8PROC_CATEGORY_LT;
    return result;
  });
}

bool is_upper_text(std::string_view text) { return all_cased(text, is_upper, is_lower); }

bool is_lower_text(std::string_view text) { return all_cased(text, is_lower, is_upper); }

bool is_letter(char32_t code) {
  const utf8proc_category_t found = category(code);
  return found >= UTF8PROC_CATEGORY_LU && found <= UTF8PROC_CATEGORY_LO;
}

}  // namespace nibble::text::jinja
