// The methods of str.
#include <algorithm>

#include "text/template/access.h"
#include "text/template/case_mapping.h"
#include "text/template/format.h"
#include "text/template/lexer.h"
#include "text/template/library.h"
#include "text/template/text_tools.h"
#include "text/tokenizer/unicode.h"

namespace nibble::text::jinja {
namespace {

constexpr Int kMaxWidth = 100'000;

Value list_of(Interpreter& interpreter, const std::vector<std::string_view>& parts, bool safe) {
  interpreter.budget().take_bytes(parts.size() * sizeof(Value));
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) {
    items.push_back(interpreter.string(std::string(part), safe));
  }
  return Value::of_list(std::move(items));
}

const std::string* optional_string(std::string_view method, const Value* value) {
  return value == nullptr || value->is_none() ? nullptr : &string_argument(method, *value);
}

template <std::string (*map)(std::string_view)>
Value mapped(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  bind("method", arguments, {});
  return interpreter.string(map(self.str()), self.is_safe());
}

template <StripSide side>
Value stripped(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto bound = bind("strip", arguments, {"chars"});
  const std::string* characters = optional_string("strip", bound[0]);
  return interpreter.string(std::string(strip(self.str(), characters, side)), self.is_safe());
}

template <bool from_right>
Value split_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto bound = bind("split", arguments, {"sep", "maxsplit"});
  return list_of(interpreter,
                 split(self.str(),
                       optional_string("split", bound[0]),
                       integer_argument(bound[1], -1),
                       from_right),
                 self.is_safe());
}

Value split_lines_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto bound = bind("splitlines", arguments, {"keepends"});
  const bool keep = bound[0] != nullptr && is_true(*bound[0]);
  return list_of(interpreter, split_lines(self.str(), keep), self.is_safe());
}

Value join_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto bound = bind("join", arguments, {"iterable"});
  const std::vector<Value> items = iterate(required("join", bound, 0), interpreter.budget());
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_string()) {
      throw TemplateError("sequence item " + std::to_string(i) + ": expected str instance, " +
                          std::string(type_name(items[i])) + " found");
    }
    const std::string_view separator = i == 0 ? std::string_view() : self.str();
    interpreter.budget().take_bytes(separator.size() + items[i].str().size());
    out += separator;
    out += self.is_safe() && !items[i].is_safe() ? escape_html(items[i].str()) : items[i].str();
  }
  return interpreter.string(std::move(out), self.is_safe());
}

Value replace_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto bound = bind("replace", arguments, {"old", "new", "count"});
  const std::string& from = string_argument("replace", required("replace", bound, 0));
  const std::string& to = string_argument("replace", required("replace", bound, 1));
  const Int limit = integer_argument(bound[2], -1);
  return Value::of_string(replace(self.str(), from, to, limit, interpreter.budget()),
                          self.is_safe());
}

// The part of the string that start and end (character positions) leave.
struct Window {
  std::string_view text;
  Int offset;  // characters before it; -1: start is beyond the end
};

Window window(const Value& self, const Value* start, const Value* stop) {
  const std::string& text = self.str();
  const auto count = static_cast<Int>(length(self));
  const auto clamp = [count](Int at) {
    return std::clamp<Int>(at < 0 ? at + count : at, 0, count);
  };
  const Int wanted = integer_argument(start, 0);
  const Int begin = clamp(wanted);
  const Int end = clamp(integer_argument(stop, count));
  size_t begin_byte = 0;
  for (Int i = 0; i < begin; ++i) {
    begin_byte += utf8_step(text, begin_byte).length;
  }
  size_t end_byte = begin_byte;
  for (Int i = begin; i < end; ++i) {
    end_byte += utf8_step(text, end_byte).length;
  }
  return {std::string_view(text).substr(begin_byte, end_byte - begin_byte),
          wanted > count || end < begin ? -1 : begin};
}

template <bool at_end>
Value affix_method(Interpreter& /*interpreter*/, const Value& self, Arguments& arguments) {
  const std::string_view name = at_end ? "endswith" : "startswith";
  const auto bound = bind(name, arguments, {"prefix", "start", "end"});
  const Value& wanted = required(name, bound, 0);
  const Window part = window(self, bound[1], bound[2]);
  const auto matches = [&](const Value& affix) {
    const std::string& text = string_argument(name, affix);
    return part.offset >= 0 && (at_end ? part.text.ends_with(text) : part.text.starts_with(text));
  };
  if (wanted.is_sequence(SequenceKind::Tuple)) {
    const auto& items = wanted.sequence().items;
    return Value::of_bool(std::any_of(items.begin(), items.end(), matches));
  }
  return Value::of_bool(matches(wanted));
}

template <bool from_right, bool must_find>
Value find_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto bound = bind("find", arguments, {"sub", "start", "end"});
  const std::string& wanted = string_argument("find", required("find", bound, 0));
  const Window part = window(self, bound[1], bound[2]);
  interpreter.budget().step(self.str().size() / 64);
  const size_t at = from_right ? part.text.rfind(wanted) : part.text.find(wanted);
  if (part.offset < 0 || at == std::string_view::npos) {
    if (must_find) {
      throw TemplateError("substring not found");
    }
    return Value::of_int(-1);
  }
  return Value::of_int(part.offset + static_cast<Int>(utf8_length(part.text.substr(0, at))));
}

Value count_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto bound = bind("count", arguments, {"sub", "start", "end"});
  const std::string& wanted = string_argument("count", required("count", bound, 0));
  const Window part = window(self, bound[1], bound[2]);
  interpreter.budget().step(self.str().size() / 64);
  if (part.offset < 0) {
    return Value::of_int(0);
  }
  if (wanted.empty()) {
    return Value::of_int(static_cast<Int>(utf8_length(part.text)) + 1);
  }
  Int count = 0;
  for (size_t at = part.text.find(wanted); at != std::string_view::npos;
       at = part.text.find(wanted, at + wanted.size())) {
    ++count;
  }
  return Value::of_int(count);
}

template <bool (*holds)(char32_t)>
Value all_characters(Interpreter& /*interpreter*/, const Value& self, Arguments& arguments) {
  bind("method", arguments, {});
  const std::string& text = self.str();
  bool all = !text.empty();
  for (size_t at = 0; all && at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    all = holds(step.code);
    at += step.length;
  }
  return Value::of_bool(all);
}

bool is_letter_or_number(char32_t code) { return is_letter(code) || is_unicode_number(code); }

template <bool (*holds)(std::string_view)>
Value whole_text(Interpreter& /*interpreter*/, const Value& self, Arguments& arguments) {
  bind("method", arguments, {});
  return Value::of_bool(holds(self.str()));
}

enum class Align { Left, Right, Center };

template <Align align>
Value pad_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto bound = bind("just", arguments, {"width", "fillchar"});
  const Int width = integer_argument(&required("just", bound, 0), 0);
  const std::string fill = bound[1] == nullptr ? " " : string_argument("just", *bound[1]);
  if (width > kMaxWidth || utf8_length(fill) != 1) {
    throw TemplateError("bad width or fill character");
  }
  const Int missing = width - static_cast<Int>(length(self));
  std::string left;
  std::string right;
  for (Int i = 0; i < missing; ++i) {
    const Int on_left = align == Align::Left    ? 0
                        : align == Align::Right ? missing
                                                : missing / 2 + (missing & width & 1);
    (i < on_left ? left : right) += fill;
  }
  return interpreter.string(left + self.str() + right, self.is_safe());
}

Value zfill_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto bound = bind("zfill", arguments, {"width"});
  const Int width = integer_argument(&required("zfill", bound, 0), 0);
  std::string text = self.str();
  const Int missing = std::min(width, kMaxWidth) - static_cast<Int>(length(self));
  const bool sign = text.starts_with('+') || text.starts_with('-');
  text.insert(sign ? 1 : 0, static_cast<size_t>(std::max<Int>(missing, 0)), '0');
  return interpreter.string(std::move(text));
}

template <bool at_end>
Value remove_affix(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto bound = bind("remove", arguments, {"affix"});
  const std::string& affix = string_argument("remove", required("remove", bound, 0));
  std::string_view text = self.str();
  if (at_end && !affix.empty() && text.ends_with(affix)) {
    text.remove_suffix(affix.size());
  } else if (!at_end && text.starts_with(affix)) {
    text.remove_prefix(affix.size());
  }
  return interpreter.string(std::string(text), self.is_safe());
}

template <bool from_right>
Value partition_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto bound = bind("partition", arguments, {"sep"});
  const std::string& separator = string_argument("partition", required("partition", bound, 0));
  if (separator.empty()) {
    throw TemplateError("empty separator");
  }
  const std::string_view text = self.str();
  const size_t at = from_right ? text.rfind(separator) : text.find(separator);
  std::string_view parts[3] = {text, "", ""};
  if (at != std::string_view::npos) {
    parts[0] = text.substr(0, at);
    parts[1] = separator;
    parts[2] = text.substr(at + separator.size());
  } else if (from_right) {
    std::swap(parts[0], parts[2]);
  }
  std::vector<Value> items;
  for (const std::string_view part : parts) {
    items.push_back(interpreter.string(std::string(part), self.is_safe()));
  }
  return Value::of_sequence(SequenceKind::Tuple, std::move(items));
}

// str.format with plain fields: {}, {0}, {name}, {{ and }}.
Value format_method(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const std::string& text = self.str();
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c != '{' && c != '}') {
      out.push_back(c);
      continue;
    }
    if (i + 1 < text.size() && text[i + 1] == c) {
      out.push_back(c);
      ++i;
      continue;
    }
    const size_t close = text.find('}', i);
    if (c == '}' || close == std::string::npos) {
      throw TemplateError("Single '" + std::string(1, c) + "' encountered in format string");
    }
    const std::string field = text.substr(i + 1, close - i - 1);
    const bool is_index = field.find_first_not_of("0123456789") == std::string::npos;
    if (field.find_first_of(".[:!{") != std::string::npos || field.size() > 64) {
      throw TemplateError("format field '" + field + "' is not supported", ErrorCode::Unsupported);
    }
    const Value* found = nullptr;
    if (is_index) {
      const size_t index = field.empty() ? next++ : field.size() > 6 ? SIZE_MAX : std::stoul(field);
      if (index < arguments.positional.size()) {
        found = &arguments.positional[index];
      }
    }
    for (const auto& [name, value] : arguments.named) {
      found = !is_index && name == field ? &value : found;
    }
    if (found == nullptr) {
      throw TemplateError("format has no argument for {" + field + "}");
    }
    out += interpreter.str(*found);
    i = close;
  }
  return interpreter.string(std::move(out));
}

constexpr FunctionEntry kMethods[] = {
    {"capitalize", mapped<capitalized>},
    {"casefold", mapped<case_folded>},
    {"center", pad_method<Align::Center>},
    {"count", count_method},
    {"endswith", affix_method<true>},
    {"find", find_method<false, false>},
    {"format", format_method},
    {"index", find_method<false, true>},
    {"isalnum", all_characters<is_letter_or_number>},
    {"isalpha", all_characters<is_letter>},
    {"isdecimal", all_characters<is_unicode_number>},
    {"isdigit", all_characters<is_unicode_number>},
    {"islower", whole_text<is_lower_text>},
    {"isnumeric", all_characters<is_unicode_number>},
    {"isspace", all_characters<is_python_space>},
    {"isupper", whole_text<is_upper_text>},
    {"join", join_method},
    {"ljust", pad_method<Align::Left>},
    {"lower", mapped<to_lower>},
    {"lstrip", stripped<StripSide::Left>},
    {"partition", partition_method<false>},
    {"removeprefix", remove_affix<false>},
    {"removesuffix", remove_affix<true>},
    {"replace", replace_method},
    {"rfind", find_method<true, false>},
    {"rindex", find_method<true, true>},
    {"rjust", pad_method<Align::Right>},
    {"rpartition", partition_method<true>},
    {"rsplit", split_method<true>},
    {"rstrip", stripped<StripSide::Right>},
    {"split", split_method<false>},
    {"splitlines", split_lines_method},
    {"startswith", affix_method<false>},
    {"strip", stripped<StripSide::Both>},
    {"swapcase", mapped<swap_case>},
    {"title", mapped<title_cased>},
    {"upper", mapped<to_upper>},
    {"zfill", zfill_method},
};

}  // namespace

std::optional<Function> find_string_method(std::string_view name) {
  for (const FunctionEntry& method : kMethods) {
    if (method.name == name) {
      return Function{method.name, method.call, nullptr};
    }
  }
  return std::nullopt;
}

}  // namespace nibble::text::jinja
