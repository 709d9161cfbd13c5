// Filters that make text or numbers of one value.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "text/template/access.h"
#include "text/template/case_mapping.h"
#include "text/template/format.h"
#include "text/template/lexer.h"
#include "text/template/library.h"
#include "text/template/text_tools.h"
#include "text/tokenizer/unicode.h"

namespace nibble::text::jinja {
namespace {

constexpr Int kMaxIndent = 1000;

bool flag(const Value* value) { return value != nullptr && is_true(*value); }

template <std::string (*map)(std::string_view)>
Value mapped(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  bind("filter", arguments, {});
  return interpreter.string(map(interpreter.str(input)), input.is_safe());
}

// Jinja's own title: words also begin after - ( { [ < and white space.
std::string title_words(std::string_view text) {
  std::string out;
  std::string word;
  const auto flush = [&] {
    if (!word.empty()) {
      const size_t first = utf8_step(word, 0).length;
      out += to_upper(std::string_view(word).substr(0, first));
      out += to_lower(std::string_view(word).substr(first));
      word.clear();
    }
  };
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    const std::string_view character = text.substr(at, step.length);
    if (is_python_space(step.code) ||
        std::string_view("-({[<").find(character) != std::string::npos) {
      flush();
      out += character;
    } else {
      word += character;
    }
    at += step.length;
  }
  flush();
  return out;
}

Value title_filter(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  bind("title", arguments, {});
  return interpreter.string(title_words(interpreter.str(input)));
}

Value trim(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound = bind("trim", arguments, {"chars"});
  const std::string text = interpreter.str(input);
  const std::string* characters =
      bound[0] == nullptr || bound[0]->is_none() ? nullptr : &string_argument("trim", *bound[0]);
  return interpreter.string(std::string(strip(text, characters, StripSide::Both)), input.is_safe());
}

Value replace_filter(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound = bind("replace", arguments, {"old", "new", "count"});
  const std::string from = interpreter.str(required("replace", bound, 0));
  const std::string to = interpreter.str(required("replace", bound, 1));
  const Int limit = integer_argument(bound[2], -1);
  return Value::of_string(replace(interpreter.str(input), from, to, limit, interpreter.budget()));
}

Value string_filter(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  bind("string", arguments, {});
  return input.is_string() ? input : interpreter.string(interpreter.str(input));
}

Value safe_filter(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  bind("safe", arguments, {});
  return interpreter.string(interpreter.str(input), true);
}

Value escape_filter(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  bind("escape", arguments, {});
  return input.is_safe() ? input : interpreter.string(escape_html(interpreter.str(input)), true);
}

Value force_escape(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  bind("forceescape", arguments, {});
  return interpreter.string(escape_html(interpreter.str(input)), true);
}

Value default_filter(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound = bind("default", arguments, {"default_value", "boolean"});
  if (input.is_undefined() || (flag(bound[1]) && !is_true(input))) {
    return bound[0] == nullptr ? interpreter.string("") : *bound[0];
  }
  return input;
}

Value format_filter(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  Value values;
  if (arguments.named.empty()) {
    values = Value::of_sequence(SequenceKind::Tuple, arguments.positional);
  } else {
    if (!arguments.positional.empty()) {
      throw TemplateError("can't handle positional and keyword arguments at the same time");
    }
    Dict dict;
    for (const auto& [name, value] : arguments.named) {
      dict.set(Value::of_string(name), value);
    }
    values = Value::of_dict(std::move(dict));
  }
  return interpreter.string(percent_format(interpreter.str(input), values, interpreter.budget()));
}

Value indent_filter(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound = bind("indent", arguments, {"width", "first", "blank"});
  std::string indention;
  if (bound[0] != nullptr && bound[0]->is_string()) {
    indention = bound[0]->str();
  } else {
    const Int width = integer_argument(bound[0], 4);
    indention.assign(static_cast<size_t>(std::clamp<Int>(width, 0, kMaxIndent)), ' ');
  }
  const std::string text = string_argument("indent", input) + "\n";
  const std::vector<std::string_view> lines = split_lines(text, false);
  std::string out = flag(bound[1]) ? indention : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    const bool indented = i > 0 && (flag(bound[2]) || !lines[i].empty());
    interpreter.budget().take_bytes(lines[i].size() + (indented ? indention.size() : 0) + 1);
    out += i > 0 ? "\n" : "";
    out += indented ? indention : "";
    out += lines[i];
  }
  return interpreter.string(std::move(out), input.is_safe());
}

Value tojson_filter(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound =
      bind("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = flag(bound[0]);
  style.sort_keys = flag(bound[3]);
  if (bound[1] != nullptr && !bound[1]->is_none()) {
    if (bound[1]->is_string()) {
      style.indent = bound[1]->str();
    } else {
      const Int width = std::clamp<Int>(integer_argument(bound[1], 0), 0, kMaxIndent);
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
    style.item_separator = ",";
  }
  if (bound[2] != nullptr && !bound[2]->is_none()) {
    const std::vector<Value> parts = iterate(*bound[2], interpreter.budget());
    if (parts.size() != 2) {
      throw TemplateError("tojson(): separators must be two strings");
    }
    style.item_separator = string_argument("tojson", parts[0]);
    style.key_separator = string_argument("tojson", parts[1]);
  }
  return Value::of_string(to_json(input, style, interpreter.budget()));
}

// Python's float(text): digits with underscores, inf, nan, white space around.
std::optional<double> parse_float(std::string_view text) {
  text = strip(text, nullptr, StripSide::Both);
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() && std::isdigit(text[i - 1]) != 0 &&
                         std::isdigit(text[i + 1]) != 0;
    if (text[i] != '_') {
      digits.push_back(text[i]);
    } else if (!between) {
      return std::nullopt;
    }
  }
  const std::string lower = to_lower(digits);
  const size_t sign = lower.starts_with('-') || lower.starts_with('+') ? 1 : 0;
  const std::string_view word = std::string_view(lower).substr(sign);
  const bool named = word == "inf" || word == "infinity" || word == "nan";
  if (digits.empty() ||
      (!named && lower.find_first_not_of("0123456789+-.e") != std::string::npos)) {
    return std::nullopt;
  }
  char* end = nullptr;
  const double value = std::strtod(digits.c_str(), &end);
  return end == digits.c_str() + digits.size() ? std::optional<double>(value) : std::nullopt;
}

std::optional<Int> parse_int(std::string_view text, Int base) {
  text = strip(text, nullptr, StripSide::Both);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) {
    text.remove_prefix(1);
  }
  const std::string prefix = to_lower(text.substr(0, 2));
  if ((base == 16 && prefix == "0x") || (base == 8 && prefix == "0o") ||
      (base == 2 && prefix == "0b")) {
    text.remove_prefix(2);
  }
  if (text.empty() || base < 2 || base > 36) {
    return std::nullopt;
  }
  Int value = 0;
  bool after_digit = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '_' && after_digit && i + 1 < text.size()) {
      after_digit = false;
      continue;
    }
    const char lower = static_cast<char>(c | 0x20);
    const Int digit = c >= '0' && c <= '9'           ? c - '0'
                      : lower >= 'a' && lower <= 'z' ? lower - 'a' + 10
                                                     : 99;
    if (digit >= base) {
      return std::nullopt;
    }
    if (value > Int{1} << 90) {
      throw TemplateError("integer is too large", ErrorCode::TooLarge);
    }
    value = value * base + digit;
    after_digit = true;
  }
  return negative ? -value : value;
}

std::optional<Int> float_to_int(double value) {
  if (std::isnan(value)) {
    return std::nullopt;
  }
  if (!(value > -1e27 && value < 1e27)) {
    throw TemplateError("integer is too large", ErrorCode::TooLarge);
  }
  return static_cast<Int>(value);
}

Value int_filter(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound = bind("int", arguments, {"default", "base"});
  require_defined(input);
  interpreter.budget().step();
  std::optional<Int> result;
  if (input.is_string()) {
    result = parse_int(input.str(), integer_argument(bound[1], 10));
    if (!result) {
      const auto real = parse_float(input.str());
      result = real ? float_to_int(*real) : std::nullopt;
    }
  } else if (input.is_float()) {
    result = float_to_int(input.as_float());
  } else if (input.is_number()) {
    result = input.as_int();
  }
  if (result) {
    return Value::of_int(*result);
  }
  return bound[0] == nullptr ? Value::of_int(0) : *bound[0];
}

Value float_filter(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound = bind("float", arguments, {"default"});
  require_defined(input);
  interpreter.budget().step();
  if (input.is_number()) {
    return Value::of_float(input.as_float());
  }
  const auto result = input.is_string() ? parse_float(input.str()) : std::nullopt;
  if (result) {
    return Value::of_float(*result);
  }
  return bound[0] == nullptr ? Value::of_float(0.0) : *bound[0];
}

Value abs_filter(Interpreter& /*interpreter*/, const Value& input, Arguments& arguments) {
  bind("abs", arguments, {});
  require_defined(input);
  if (input.is_float()) {
    return Value::of_float(std::fabs(input.as_float()));
  }
  if (!input.is_number()) {
    throw TemplateError("bad operand type for abs(): '" + std::string(type_name(input)) + "'");
  }
  return Value::of_int(input.as_int() < 0 ? -input.as_int() : input.as_int());
}

Value round_filter(Interpreter& /*interpreter*/, const Value& input, Arguments& arguments) {
  const auto bound = bind("round", arguments, {"precision", "method"});
  require_defined(input);
  const Int precision = integer_argument(bound[0], 0);
  const std::string method = bound[1] == nullptr ? "common" : string_argument("round", *bound[1]);
  if (!input.is_number() || precision < -15 || precision > 15) {
    throw TemplateError("round(): expected a number and a precision of -15 to 15");
  }
  if (method == "common") {
    if (!input.is_float() && precision >= 0) {
      return Value::of_int(input.as_int());
    }
    if (precision >= 0 && std::isfinite(input.as_float())) {
      char text[400];  // the exact decimal value, rounded half to even as Python does
      std::snprintf(text, sizeof text, "%.*f", static_cast<int>(precision), input.as_float());
      return Value::of_float(std::strtod(text, nullptr));
    }
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = input.as_float() * scale;
  if (method == "ceil") {
    return Value::of_float((std::ceil(scaled) + 0.0) / scale);
  }
  if (method == "floor") {
    return Value::of_float((std::floor(scaled) + 0.0) / scale);
  }
  if (method != "common") {
    throw TemplateError("method must be common, ceil or floor");
  }
  const double rounded = std::nearbyint(scaled) / scale;
  return input.is_float() ? Value::of_float(rounded) : Value::of_int(static_cast<Int>(rounded));
}

Value wordcount(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  bind("wordcount", arguments, {});
  const std::string text = interpreter.str(input);
  Int count = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    const bool word = is_letter(step.code) || is_unicode_number(step.code) || step.code == '_';
    count += word && !inside ? 1 : 0;
    inside = word;
    at += step.length;
  }
  return Value::of_int(count);
}

Value truncate(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound = bind("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const std::string end = bound[2] == nullptr ? "..." : string_argument("truncate", *bound[2]);
  const Int wanted = integer_argument(bound[0], 255);
  const Int leeway = integer_argument(bound[3], 5);
  const auto end_length = static_cast<Int>(utf8_length(end));
  if (wanted < end_length || leeway < 0) {
    throw TemplateError("expected length >= " + int_text(end_length) + " and leeway >= 0");
  }
  if (static_cast<Int>(length(input)) <= wanted + leeway) {
    return input;
  }
  const std::string& text = string_argument("truncate", input);
  size_t cut = 0;
  for (Int i = 0; i < wanted - end_length; ++i) {
    cut += utf8_step(text, cut).length;
  }
  std::string kept = text.substr(0, cut);
  const size_t space = kept.rfind(' ');
  if (!flag(bound[1]) && space != std::string::npos) {
    kept.resize(space);
  }
  return interpreter.string(kept + end);
}

// urllib's quote; in a query a space is + and / is escaped too.
std::string quoted(std::string_view text, bool query) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (std::isalnum(byte) != 0 || std::string_view("_.-~").find(c) != std::string::npos ||
        (c == '/' && !query)) {
      out.push_back(c);
    } else if (c == ' ' && query) {
      out.push_back('+');
    } else {
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

Value urlencode(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  bind("urlencode", arguments, {});
  if (input.kind() != Kind::Sequence && !input.is_dict() && !input.is_undefined()) {
    return interpreter.string(quoted(interpreter.str(input), false));
  }
  std::string out;
  const auto add = [&](const Value& key, const Value& value) {
    out += out.empty() ? "" : "&";
    out += quoted(interpreter.str(key), true) + "=" + quoted(interpreter.str(value), true);
  };
  if (input.is_dict()) {
    for (const auto& [key, value] : input.dict().items()) {
      add(key, value);
    }
  } else {
    for (const Value& item : iterate(input, interpreter.budget())) {
      const std::vector<Value> pair = iterate(item, interpreter.budget());
      if (pair.size() != 2) {
        throw TemplateError("urlencode(): expected pairs");
      }
      add(pair[0], pair[1]);
    }
  }
  return interpreter.string(std::move(out));
}

constexpr Filter kFilters[] = {
    {"abs", abs_filter},
    {"capitalize", mapped<capitalized>},
    {"d", default_filter},
    {"default", default_filter},
    {"e", escape_filter},
    {"escape", escape_filter},
    {"float", float_filter},
    {"forceescape", force_escape},
    {"format", format_filter},
    {"indent", indent_filter},
    {"int", int_filter},
    {"lower", mapped<to_lower>},
    {"replace", replace_filter},
    {"round", round_filter},
    {"safe", safe_filter},
    {"string", string_filter},
    {"title", title_filter},
    {"tojson", tojson_filter},
    {"trim", trim},
    {"truncate", truncate},
    {"upper", mapped<to_upper>},
    {"urlencode", urlencode},
    {"wordcount", wordcount},
};

}  // namespace

std::span<const Filter> text_filters() { return kFilters; }

}  // namespace nibble::text::jinja
