// Values as text: Python's str and repr, json.dumps as transformers' tojson calls it, and the %
// operator on strings.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/template/value.h"

namespace nibble::text::jinja {

std::string int_text(Int value);
std::string float_text(double value);  // Python's repr: 1.0, 1e+20, 0.1

// Appends str(value) (undefined is empty) or repr(value).
void append_str(const Value& value, std::string& out, Budget& budget);
void append_repr(const Value& value, std::string& out, Budget& budget);
std::string to_str(const Value& value, Budget& budget);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // one level's; nullopt: on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

// format % arguments, arguments being a tuple, a dict or one value.
std::string percent_format(std::string_view format, const Value& arguments, Budget& budget);

std::string escape_html(std::string_view text);

}  // namespace nibble::text::jinja
