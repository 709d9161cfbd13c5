// Python's % operator on strings.
#include <algorithm>
#include <cstdio>

#include "text/template/format.h"
#include "text/tokenizer/unicode.h"

namespace nibble::text::jinja {
namespace {

constexpr int64_t kMaxWidth = 10'000;

struct Directive {
  bool left = false;
  bool zero = false;
  bool plus = false;
  bool space = false;
  bool alternate = false;
  int64_t width = 0;
  int64_t precision = -1;
  char conversion = 's';
};

class PercentFormatter {
 public:
  PercentFormatter(std::string_view format, const Value& arguments, Budget& budget)
      : format_(format), arguments_(arguments), budget_(budget) {}

  std::string run() {
    while (at_ < format_.size()) {
      const size_t percent = format_.find('%', at_);
      if (percent == std::string_view::npos) {
        out_ += format_.substr(at_);
        break;
      }
      out_ += format_.substr(at_, percent - at_);
      at_ = percent + 1;
      directive();
    }
    const bool is_tuple = arguments_.is_sequence(SequenceKind::Tuple);
    const bool leftover =
        is_tuple ? next_ < arguments_.sequence().items.size() : next_ == 0 && !is_mapping_like();
    if (leftover && !used_name_) {
      throw TemplateError("not all arguments converted during string formatting");
    }
    return std::move(out_);
  }

 private:
  // Python's test for the argument of %(name)s: whatever has items, but str and tuple.
  bool is_mapping_like() const {
    return arguments_.is_dict() || arguments_.is_sequence(SequenceKind::List) ||
           arguments_.is_sequence(SequenceKind::Range) || arguments_.is_undefined();
  }

  const Value& next_argument() {
    if (arguments_.is_sequence(SequenceKind::Tuple)) {
      const auto& items = arguments_.sequence().items;
      if (next_ < items.size()) {
        return items[next_++];
      }
    } else if (next_++ == 0) {
      return arguments_;
    }
    throw TemplateError("not enough arguments for format string");
  }

  char take() {
    if (at_ >= format_.size()) {
      throw TemplateError("incomplete format");
    }
    return format_[at_++];
  }

  int64_t number(char& c) {
    int64_t value = 0;
    while (c >= '0' && c <= '9') {
      value = std::min(value * 10 + (c - '0'), kMaxWidth + 1);
      c = take();
    }
    if (value > kMaxWidth) {
      throw TemplateError("format width is too large", ErrorCode::TooLarge);
    }
    return value;
  }

  void directive() {
    Directive spec;
    const Value* argument = nullptr;
    char c = take();
    if (c == '(') {
      const size_t close = format_.find(')', at_);
      if (close == std::string_view::npos) {
        throw TemplateError("incomplete format key");
      }
      if (!arguments_.is_dict()) {
        throw TemplateError("format requires a mapping");
      }
      argument = arguments_.dict().find(format_.substr(at_, close - at_));
      if (argument == nullptr) {
        throw TemplateError("'" + std::string(format_.substr(at_, close - at_)) + "'");
      }
      used_name_ = true;
      at_ = close + 1;
      c = take();
    }
    for (;; c = take()) {
      if (c == '-') {
        spec.left = true;
      } else if (c == '0') {
        spec.zero = true;
      } else if (c == '+') {
        spec.plus = true;
      } else if (c == ' ') {
        spec.space = true;
      } else if (c == '#') {
        spec.alternate = true;
      } else {
        break;
      }
    }
    spec.width = number(c);
    if (c == '.') {
      c = take();
      spec.precision = number(c);
    }
    if (c == '%') {
      out_.push_back('%');
      return;
    }
    spec.conversion = c;
    convert(spec, argument == nullptr ? next_argument() : *argument);
  }

  void convert(const Directive& spec, const Value& value) {
    switch (spec.conversion) {
      case 's':
        pad(spec, cut(spec, to_str(value, budget_)), false);
        return;
      case 'r': {
        std::string text;
        append_repr(value, text, budget_);
        pad(spec, cut(spec, std::move(text)), false);
        return;
      }
      case 'd':
      case 'i':
      case 'u':
        pad(spec, signed_text(spec, int_text(integer(value, spec.conversion))), true);
        return;
      case 'x':
      case 'X':
      case 'o':
        pad(spec, signed_text(spec, based(spec, integer(value, spec.conversion))), true);
        return;
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        pad(spec, signed_text(spec, real(spec, value)), true);
        return;
      case 'c':
        character(spec, value);
        return;
      default:
        throw TemplateError("unsupported format character '" + std::string(1, spec.conversion) +
                            "'");
    }
  }

  static Int integer(const Value& value, char conversion) {
    require_defined(value);
    if (!value.is_number() || (value.is_float() && conversion != 'd' && conversion != 'i')) {
      throw TemplateError("%" + std::string(1, conversion) +
                          " format: a real number is required, not " +
                          std::string(type_name(value)));
    }
    if (!value.is_float()) {
      return value.as_int();
    }
    if (!(value.as_float() > -1e37 && value.as_float() < 1e37)) {
      throw TemplateError("cannot convert float to integer");
    }
    return static_cast<Int>(value.as_float());
  }

  static std::string based(const Directive& spec, Int value) {
    const Int base = spec.conversion == 'o' ? 8 : 16;
    const char* digits = spec.conversion == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    const bool negative = value < 0;
    std::string text;
    do {
      const int digit = static_cast<int>(value % base);
      text.push_back(digits[digit < 0 ? -digit : digit]);
      value /= base;
    } while (value != 0);
    if (spec.alternate) {
      text += spec.conversion;
      text += '0';
    }
    if (negative) {
      text.push_back('-');
    }
    std::reverse(text.begin(), text.end());
    return text;
  }

  static std::string real(const Directive& spec, const Value& value) {
    require_defined(value);
    if (!value.is_number()) {
      throw TemplateError("must be real number, not " + std::string(type_name(value)));
    }
    const char format[] = {'%', '.', '*', spec.conversion, 0};
    const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
    std::string text(400 + static_cast<size_t>(precision), '\0');
    const int length = std::snprintf(text.data(), text.size(), format, precision, value.as_float());
    text.resize(static_cast<size_t>(length));
    return text;
  }

  void character(const Directive& spec, const Value& value) {
    std::string text;
    if (value.is_string() && utf8_length(value.str()) == 1) {
      text = value.str();
    } else if (value.is_int() && value.as_int() >= 0 && value.as_int() < 0x110000 &&
               (value.as_int() < 0xD800 || value.as_int() > 0xDFFF)) {
      append_utf8(text, static_cast<char32_t>(value.as_int()));
    } else {
      throw TemplateError("%c requires int or char");
    }
    pad(spec, std::move(text), false);
  }

  static std::string signed_text(const Directive& spec, std::string text) {
    if (!text.starts_with('-')) {
      text.insert(0, spec.plus ? "+" : spec.space ? " " : "");
    }
    return text;
  }

  static std::string cut(const Directive& spec, std::string text) {
    if (spec.precision >= 0) {
      size_t end = 0;
      for (int64_t i = 0; i < spec.precision && end < text.size(); ++i) {
        end += utf8_step(text, end).length;
      }
      text.resize(end);
    }
    return text;
  }

  void pad(const Directive& spec, std::string text, bool numeric) {
    const size_t length = utf8_length(text);
    const auto width = static_cast<size_t>(spec.width);
    if (length < width) {
      const size_t fill = width - length;
      if (spec.left) {
        text.append(fill, ' ');
      } else if (numeric && spec.zero) {
        text.insert(text.find_first_not_of("+- "), fill, '0');
      } else {
        text.insert(0, fill, ' ');
      }
    }
    budget_.take_bytes(text.size());
    out_ += text;
  }

  std::string_view format_;
  const Value& arguments_;
  Budget& budget_;
  size_t at_ = 0;
  size_t next_ = 0;
  bool used_name_ = false;
  std::string out_;
};

}  // namespace

std::string percent_format(std::string_view format, const Value& arguments, Budget& budget) {
  return PercentFormatter(format, arguments, budget).run();
}

}  // namespace nibble::text::jinja
