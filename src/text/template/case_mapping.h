// Upper and lower case of whole strings, as Python maps them (German sharp s becomes SS; other
// characters with special mappings keep the simple one).
#pragma once

#include <string>
#include <string_view>

namespace nibble::text::jinja {

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string case_folded(std::string_view text);  // str.casefold
std::string swap_case(std::string_view text);
// str.capitalize: the first character in title case, the rest in lower case.
std::string capitalized(std::string_view text);
// str.title: every run of letters capitalised.
std::string title_cased(std::string_view text);
bool is_upper_text(std::string_view text);  // str.isupper
bool is_lower_text(std::string_view text);  // str.islower
bool is_letter(char32_t code);

}  // namespace nibble::text::jinja
