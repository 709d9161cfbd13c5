#include "text/template/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <utf8proc.h>

#include "text/tokenizer/unicode.h"

namespace nibble::text::jinja {
namespace {

constexpr char kHex[] = "0123456789abcdef";

void append_hex(std::string& out, uint32_t code, int digits) {
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) {
    out.push_back(kHex[(code >> shift) & 15U]);
  }
}

// Python's str.isprintable for one character.
bool is_printable(char32_t code) {
  if (code < 0x80) {
    return code >= 0x20 && code < 0x7F;
  }
  const utf8proc_category_t found = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return found != UTF8PROC_CATEGORY_CN && found < UTF8PROC_CATEGORY_ZS;
}

void append_string_repr(std::string_view text, std::string& out) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out.push_back(quote);
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    const char32_t code = step.code;
    if (code == static_cast<char32_t>(quote) || code == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(code));
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (is_printable(code)) {
      out.append(text, i, step.length);
    } else if (code < 0x100) {
      out += "\\x";
      append_hex(out, code, 2);
    } else if (code < 0x10000) {
      out += "\\u";
      append_hex(out, code, 4);
    } else {
      out += "\\U";
      append_hex(out, code, 8);
    }
    i += step.length;
  }
  out.push_back(quote);
}

class Printer {
 public:
  Printer(std::string& out, Budget& budget) : out_(out), budget_(budget) {}

  void repr(const Value& value) {
    budget_.step();
    if (++level_ > kMaxValueDepth) {  // a namespace can contain itself
      throw TemplateError("values are nested too deep", ErrorCode::TooLarge);
    }
    const size_t before = out_.size();
    append(value);
    if (value.kind() != Kind::Sequence && value.kind() != Kind::Dict) {
      budget_.take_bytes(out_.size() - before);
    }
    --level_;
  }

 private:
  void append(const Value& value) {
    switch (value.kind()) {
      case Kind::Undefined:
        out_ += "Undefined";
        return;
      case Kind::None:
        out_ += "None";
        return;
      case Kind::Bool:
        out_ += value.as_bool() ? "True" : "False";
        return;
      case Kind::Integer:
        out_ += int_text(value.as_int());
        return;
      case Kind::Float:
        out_ += float_text(value.as_float());
        return;
      case Kind::String:
        out_ += value.is_safe() ? "Markup(" : "";
        append_string_repr(value.str(), out_);
        out_ += value.is_safe() ? ")" : "";
        return;
      case Kind::Sequence:
        append_sequence(value.sequence());
        return;
      case Kind::Dict: {
        out_.push_back('{');
        bool first = true;
        for (const auto& [key, item] : value.dict().items()) {
          out_ += first ? "" : ", ";
          first = false;
          repr(key);
          out_ += ": ";
          repr(item);
        }
        out_.push_back('}');
        return;
      }
      case Kind::Namespace: {
        out_ += "<Namespace {";
        bool first = true;
        for (const auto& [name, item] : value.name_space().attributes) {
          out_ += first ? "" : ", ";
          first = false;
          append_string_repr(name, out_);
          out_ += ": ";
          repr(item);
        }
        out_ += "}>";
        return;
      }
      case Kind::Function:
        out_ += "<function " + std::string(value.function().name) + ">";
        return;
      case Kind::Macro:
        out_ += "<Macro>";
        return;
      case Kind::Loop:
        out_ += "<LoopContext>";
        return;
    }
  }

  void append_sequence(const Sequence& sequence) {
    std::string_view open = "[";
    std::string_view close = "]";
    switch (sequence.kind) {
      case SequenceKind::List:
        break;
      case SequenceKind::Tuple:
        open = "(";
        close = sequence.items.size() == 1 ? ",)" : ")";
        break;
      case SequenceKind::DictKeys:
        open = "dict_keys([";
        close = "])";
        break;
      case SequenceKind::DictValues:
        open = "dict_values([";
        close = "])";
        break;
      case SequenceKind::DictItems:
        open = "dict_items([";
        close = "])";
        break;
      case SequenceKind::Range:
        append_range(sequence);
        return;
      case SequenceKind::Generator:
        out_ += "<generator object>";
        return;
    }
    out_ += open;
    for (size_t i = 0; i < sequence.items.size(); ++i) {
      out_ += i == 0 ? "" : ", ";
      repr(sequence.items[i]);
    }
    out_ += close;
  }

  void append_range(const Sequence& sequence) {
    const std::vector<Value>& items = sequence.items;
    const Int first = items.empty() ? 0 : items.front().as_int();
    const Int step = items.size() < 2 ? 1 : items[1].as_int() - first;
    const Int stop = items.empty() ? 0 : items.back().as_int() + step;
    out_ += "range(" + int_text(first) + ", " + int_text(stop);
    out_ += step == 1 ? ")" : ", " + int_text(step) + ")";
  }

  std::string& out_;
  Budget& budget_;
  uint32_t level_ = 0;
};

}  // namespace

std::string int_text(Int value) {
  if (value == 0) {
    return "0";
  }
  const bool negative = value < 0;
  std::string digits;
  while (value != 0) {
    const int digit = static_cast<int>(value % 10);
    digits.push_back(static_cast<char>('0' + (digit < 0 ? -digit : digit)));
    value /= 10;
  }
  if (negative) {
    digits.push_back('-');
  }
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string float_text(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value > 0 ? "inf" : "-inf";
  }
  if (value == 0.0) {
    return std::signbit(value) ? "-0.0" : "0.0";
  }
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view shortest(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t e = shortest.find('e');
  std::string digits;
  for (const char c : shortest.substr(0, e)) {
    if (c >= '0' && c <= '9') {
      digits.push_back(c);
    }
  }
  int exponent = 0;
  const std::string_view power = shortest.substr(e + (shortest[e + 1] == '+' ? 2 : 1));
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  std::string out = value < 0 ? "-" : "";
  if (exponent < -4 || exponent >= 16) {  // where Python's repr changes to an exponent
    out += digits.substr(0, 1);
    out += digits.size() > 1 ? "." + digits.substr(1) : "";
    out += exponent < 0 ? "e-" : "e+";
    const int magnitude = std::abs(exponent);
    out += (magnitude < 10 ? "0" : "") + std::to_string(magnitude);
  } else if (exponent < 0) {
    out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else {
    const auto whole = static_cast<size_t>(exponent) + 1;
    if (digits.size() <= whole) {
      out += digits + std::string(whole - digits.size(), '0') + ".0";
    } else {
      out += digits.substr(0, whole) + "." + digits.substr(whole);
    }
  }
  return out;
}

void append_repr(const Value& value, std::string& out, Budget& budget) {
  Printer(out, budget).repr(value);
}

void append_str(const Value& value, std::string& out, Budget& budget) {
  if (value.is_string()) {
    budget.take_bytes(value.str().size());
    out += value.str();
  } else if (!value.is_undefined()) {
    append_repr(value, out, budget);
  }
}

std::string to_str(const Value& value, Budget& budget) {
  std::string out;
  append_str(value, out, budget);
  return out;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

}  // namespace nibble::text::jinja
