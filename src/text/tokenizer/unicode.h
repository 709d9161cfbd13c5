// UTF-8 stepping and the few character classes that tokenizers ask about. Invalid input is allowed
// everywhere; it is cut the way Unicode recommends (one U+FFFD for each maximal ill-formed part).
// Pure functions, no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::text {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Status : uint8_t {
  Valid,
  Invalid,     // `length` bytes can never start a character
  Incomplete,  // the text ends inside a character that is right so far
};

struct Utf8Step {
  char32_t code = 0;  // U+FFFD unless Valid
  uint32_t length = 0;
  Utf8Status status = Utf8Status::Valid;
};

// The character (or ill-formed part) that starts at text[at]; at < text.size().
Utf8Step utf8_step(std::string_view text, size_t at);
void append_utf8(std::string& out, char32_t code);
bool is_valid_utf8(std::string_view text);
// A copy with every ill-formed part replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);
// How many bytes at the end are the beginning of a character that may still be completed (0..3).
size_t incomplete_utf8_tail(std::string_view text);
// Number of characters; the text must be valid.
size_t utf8_length(std::string_view text);
// Where the character before `at` starts; the text must be valid and 0 < at <= text.size().
size_t previous_utf8(std::string_view text, size_t at);
bool is_ascii(std::string_view text);

bool is_unicode_space(char32_t code);  // White_Space
// Where white space at the end begins (the length where there is none), and how long it is in
// front; the text must be valid.
size_t begin_of_trailing_space(std::string_view text);
size_t length_of_leading_space(std::string_view text);
bool is_unicode_number(char32_t code);       // general category N
bool is_unicode_mark(char32_t code);         // general category M
bool is_unicode_punctuation(char32_t code);  // general category P, or ASCII punctuation
bool is_unicode_word(char32_t code);         // letters, marks, digits, connectors, joiners

}  // namespace nibble::text
