#include "text/tokenizer/unicode.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include <utf8proc.h>

namespace nibble::text {
namespace {

constexpr char32_t kReplacementCode = 0xFFFD;

struct LeadByte {
  uint32_t length;     // 0: cannot start a character
  uint8_t low = 0x80;  // range of the second byte (Unicode 15, table 3-7)
  uint8_t high = 0xBF;
};

LeadByte lead_byte(uint8_t byte) {
  if (byte < 0x80) {
    return {1};
  }
  if (byte < 0xC2) {
    return {0};
  }
  if (byte < 0xE0) {
    return {2};
  }
  if (byte < 0xF0) {
    return {3,
            static_cast<uint8_t>(byte == 0xE0 ? 0xA0 : 0x80),
            static_cast<uint8_t>(byte == 0xED ? 0x9F : 0xBF)};
  }
  if (byte < 0xF5) {
    return {4,
            static_cast<uint8_t>(byte == 0xF0 ? 0x90 : 0x80),
            static_cast<uint8_t>(byte == 0xF4 ? 0x8F : 0xBF)};
  }
  return {0};
}

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

}  // namespace

Utf8Step utf8_step(std::string_view text, size_t at) {
  const auto first = static_cast<uint8_t>(text[at]);
  if (first < 0x80) {
    return {first, 1, Utf8Status::Valid};
  }
  const LeadByte lead = lead_byte(first);
  if (lead.length == 0) {
    return {kReplacementCode, 1, Utf8Status::Invalid};
  }
  char32_t code = first & (0xFFU >> (lead.length + 1));
  for (uint32_t i = 1; i < lead.length; ++i) {
    if (at + i >= text.size()) {
      return {kReplacementCode, i, Utf8Status::Incomplete};
    }
    const auto byte = static_cast<uint8_t>(text[at + i]);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) {
      return {kReplacementCode, i, Utf8Status::Invalid};
    }
    code = (code << 6) | (byte & 0x3FU);
  }
  return {code, lead.length, Utf8Status::Valid};
}

void append_utf8(std::string& out, char32_t code) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

bool is_ascii(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080U) != 0) {
      return false;
    }
  }
  for (; i < text.size(); ++i) {
    if (static_cast<uint8_t>(text[i]) >= 0x80) {
      return false;
    }
  }
  return true;
}

bool is_valid_utf8(std::string_view text) {
  if (is_ascii(text)) {
    return true;
  }
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    if (step.status != Utf8Status::Valid) {
      return false;
    }
    i += step.length;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    if (step.status == Utf8Status::Valid) {
      out.append(text, i, step.length);
    } else {
      out.append(kReplacementCharacter);
    }
    i += step.length;
  }
  return out;
}

size_t incomplete_utf8_tail(std::string_view text) {
  const size_t longest = text.size() < 3 ? text.size() : 3;
  for (size_t length = 1; length <= longest; ++length) {
    const size_t at = text.size() - length;
    const auto byte = static_cast<uint8_t>(text[at]);
    if (byte >= 0xC0) {
      const Utf8Step step = utf8_step(text, at);
      return step.status == Utf8Status::Incomplete && step.length == length ? length : 0;
    }
    if (byte < 0x80) {
      return 0;
    }
  }
  return 0;
}

size_t utf8_length(std::string_view text) {
  size_t count = 0;
  for (const char byte : text) {
    count += (static_cast<uint8_t>(byte) & 0xC0U) != 0x80U ? 1 : 0;
  }
  return count;
}

size_t previous_utf8(std::string_view text, size_t at) {
  do {
    --at;
  } while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0U) == 0x80U);
  return at;
}

bool is_unicode_space(char32_t code) {
  if (code < 0x80) {
    return code == ' ' || (code >= 9 && code <= 13);
  }
  switch (code) {
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000:
      return true;
    default:
      return code >= 0x2000 && code <= 0x200A;
  }
}

bool is_unicode_number(char32_t code) {
  if (code < 0x80) {
    return code >= '0' && code <= '9';
  }
  const utf8proc_category_t found = category(code);
  return found >= UTF8PROC_CATEGORY_ND && found <= UTF8PROC_CATEGORY_NO;
}

bool is_unicode_mark(char32_t code) {
  const utf8proc_category_t found = category(code);
  return found >= UTF8PROC_CATEGORY_MN && found <= UTF8PROC_CATEGORY_ME;
}

namespace {

// The reference splits at punctuation by a table of Unicode 8: what became punctuation later is
// none there. Found by asking `tokenizers` 0.23 for every character.
struct CodeRange {
  char32_t first;
  char32_t last;
};
constexpr CodeRange kLaterPunctuation[] = {
    {0x61D, 0x61D},     {0x9FD, 0x9FD},     {0xA76, 0xA76},     {0xC77, 0xC77},
    {0xC84, 0xC84},     {0x1B7D, 0x1B7E},   {0x2E43, 0x2E4F},   {0x2E52, 0x2E5D},
    {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59}, {0x10F86, 0x10F89}, {0x1144B, 0x1144F},
    {0x1145A, 0x1145B}, {0x1145D, 0x1145D}, {0x11660, 0x1166C}, {0x116B9, 0x116B9},
    {0x1183B, 0x1183B}, {0x11944, 0x11946}, {0x119E2, 0x119E2}, {0x11A3F, 0x11A46},
    {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11C41, 0x11C45}, {0x11C70, 0x11C71},
    {0x11EF7, 0x11EF8}, {0x11FFF, 0x11FFF}, {0x12FF1, 0x12FF2}, {0x16E97, 0x16E9A},
    {0x16FE2, 0x16FE2}, {0x1E95E, 0x1E95F}};

bool became_punctuation_later(char32_t code) {
  const auto* range = std::lower_bound(
      std::begin(kLaterPunctuation),
      std::end(kLaterPunctuation),
      code,
      [](const CodeRange& candidate, char32_t wanted) { return candidate.last < wanted; });
  return range != std::end(kLaterPunctuation) && range->first <= code;
}

}  // namespace

bool is_unicode_punctuation(char32_t code) {
  if (code < 0x80) {
    return code > ' ' && code < 0x7F && !(code >= '0' && code <= '9') &&
           !((code | 0x20U) >= 'a' && (code | 0x20U) <= 'z');
  }
  const utf8proc_category_t found = category(code);
  if (code == 0x166D || code == 0x111C9) {
    return true;  // was punctuation in that table
  }
  return found >= UTF8PROC_CATEGORY_PC && found <= UTF8PROC_CATEGORY_PO &&
         !became_punctuation_later(code);
}

bool is_unicode_word(char32_t code) {
  const utf8proc_category_t found = category(code);
  const bool circled_letter = (code >= 0x24B6 && code <= 0x24E9) ||
                              (code >= 0x1F130 && code <= 0x1F149) ||
                              (code >= 0x1F150 && code <= 0x1F169) ||
                              (code >= 0x1F170 && code <= 0x1F189);  // Other_Alphabetic
  return (found >= UTF8PROC_CATEGORY_LU && found <= UTF8PROC_CATEGORY_NL) ||
         found == UTF8PROC_CATEGORY_PC || code == 0x200C || code == 0x200D || circled_letter;
}

size_t begin_of_trailing_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const size_t last = previous_utf8(text, end);
    if (!is_unicode_space(utf8_step(text, last).code)) {
      break;
    }
    end = last;
  }
  return end;
}

size_t length_of_leading_space(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const Utf8Step step = utf8_step(text, length);
    if (!is_unicode_space(step.code)) {
      break;
    }
    length += step.length;
  }
  return length;
}

}  // namespace nibble::text
