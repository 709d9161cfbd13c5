#include "text/template/text_tools.h"

#include <algorithm>

#include "text/template/lexer.h"
#include "text/tokenizer/unicode.h"

namespace nibble::text::jinja {
namespace {

std::vector<std::string_view> split_space(std::string_view text, Int limit, bool from_right) {
  std::vector<std::string_view> parts;
  const auto space = [&](size_t at) { return is_python_space(utf8_step(text, at).code); };
  if (from_right) {
    size_t end = text.size();
    while (end > 0) {
      const size_t last = previous_utf8(text, end);
      if (space(last)) {
        end = last;
        continue;
      }
      if (limit >= 0 && static_cast<Int>(parts.size()) == limit) {
        parts.push_back(text.substr(0, end));  // only its right end is stripped
        break;
      }
      size_t begin = last;
      while (begin > 0 && !space(previous_utf8(text, begin))) {
        begin = previous_utf8(text, begin);
      }
      parts.push_back(text.substr(begin, end - begin));
      end = begin;
    }
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  for (size_t at = 0; at < text.size();) {
    if (space(at)) {
      at += utf8_step(text, at).length;
      continue;
    }
    if (limit >= 0 && static_cast<Int>(parts.size()) == limit) {
      parts.push_back(text.substr(at));
      break;
    }
    size_t end = at;
    while (end < text.size() && !space(end)) {
      end += utf8_step(text, end).length;
    }
    parts.push_back(text.substr(at, end - at));
    at = end;
  }
  return parts;
}

}  // namespace

std::string_view strip(std::string_view text, const std::string* characters, StripSide side) {
  const auto drop = [&](size_t at) {
    const Utf8Step step = utf8_step(text, at);
    if (characters == nullptr) {
      return is_python_space(step.code);
    }
    return characters->find(text.substr(at, step.length)) != std::string::npos;
  };
  while (side != StripSide::Right && !text.empty() && drop(0)) {
    text.remove_prefix(utf8_step(text, 0).length);
  }
  while (side != StripSide::Left && !text.empty()) {
    const size_t last = previous_utf8(text, text.size());
    if (!drop(last)) {
      break;
    }
    text = text.substr(0, last);
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text,
                                    const std::string* separator,
                                    Int limit,
                                    bool from_right) {
  if (separator == nullptr) {
    return split_space(text, limit, from_right);
  }
  if (separator->empty()) {
    throw TemplateError("empty separator");
  }
  std::vector<std::string_view> parts;
  const auto room = [&] { return limit < 0 || static_cast<Int>(parts.size()) < limit; };
  if (from_right) {
    size_t end = text.size();
    while (room()) {
      const size_t at = end < separator->size() ? std::string_view::npos
                                                : text.rfind(*separator, end - separator->size());
      if (at == std::string_view::npos) {
        break;
      }
      parts.push_back(text.substr(at + separator->size(), end - at - separator->size()));
      end = at;
    }
    parts.push_back(text.substr(0, end));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t done = 0;
  while (room()) {
    const size_t at = text.find(*separator, done);
    if (at == std::string_view::npos) {
      break;
    }
    parts.push_back(text.substr(done, at - done));
    done = at + separator->size();
  }
  parts.push_back(text.substr(done));
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    const char32_t code = step.code;
    size_t end = at + step.length;
    const bool breaks = (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) ||
                        code == 0x85 || code == 0x2028 || code == 0x2029;
    if (breaks) {
      end += code == '\r' && end < text.size() && text[end] == '\n' ? 1 : 0;
      lines.push_back(text.substr(begin, (keep_ends ? end : at) - begin));
      begin = end;
    }
    at = end;
  }
  if (begin < text.size()) {
    lines.push_back(text.substr(begin));
  }
  return lines;
}

std::string replace(
    std::string_view text, std::string_view from, std::string_view to, Int limit, Budget& budget) {
  std::string out;
  Int count = 0;
  size_t done = 0;
  if (from.empty()) {  // between all characters
    for (size_t at = 0; at <= text.size() && (limit < 0 || count < limit); ++count) {
      budget.take_bytes(to.size());
      out += to;
      if (at == text.size()) {
        done = at;
        break;
      }
      const size_t size = utf8_step(text, at).length;
      out += text.substr(at, size);
      at += size;
      done = at;
    }
  } else {
    while (limit < 0 || count < limit) {
      const size_t at = text.find(from, done);
      if (at == std::string_view::npos) {
        break;
      }
      budget.take_bytes(to.size());
      out += text.substr(done, at - done);
      out += to;
      done = at + from.size();
      ++count;
    }
  }
  budget.take_bytes(text.size());
  out += text.substr(done);
  return out;
}

}  // namespace nibble::text::jinja
