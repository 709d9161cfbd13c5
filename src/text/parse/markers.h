// Finding markers such as </think> in text that comes in pieces.
#pragma once

#include <string>
#include <string_view>

namespace nibble::text {

// How many bytes at the end of `text` may be the beginning of `marker` (never the whole marker).
size_t partial_marker(std::string_view text, std::string_view marker);
// How many bytes at the end are white space.
size_t trailing_space(std::string_view text);
std::string_view without_leading_space(std::string_view text);
std::string_view trimmed(std::string_view text);  // of white space at both ends

}  // namespace nibble::text
