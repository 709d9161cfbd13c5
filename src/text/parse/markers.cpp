#include "text/parse/markers.h"

#include <algorithm>

namespace nibble::text {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

}  // namespace

size_t partial_marker(std::string_view text, std::string_view marker) {
  for (size_t length = std::min(text.size(), marker.size() - 1); length > 0; --length) {
    if (text.ends_with(marker.substr(0, length))) {
      return length;
    }
  }
  return 0;
}

size_t trailing_space(std::string_view text) {
  const size_t last = text.find_last_not_of(kSpace);
  return last == std::string_view::npos ? text.size() : text.size() - last - 1;
}

std::string_view without_leading_space(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  return first == std::string_view::npos ? std::string_view() : text.substr(first);
}

std::string_view trimmed(std::string_view text) {
  text = without_leading_space(text);
  text.remove_suffix(trailing_space(text));
  return text;
}

}  // namespace nibble::text
