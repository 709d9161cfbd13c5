// json.dumps, with the layout that Python gives it.
#include <algorithm>
#include <cmath>

#include "text/template/access.h"
#include "text/template/format.h"
#include "text/tokenizer/unicode.h"

namespace nibble::text::jinja {
namespace {

void append_escape(std::string& out, uint32_t unit) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) {
    out.push_back(kHex[(unit >> shift) & 15U]);
  }
}

class JsonPrinter {
 public:
  JsonPrinter(const JsonStyle& style, std::string& out, Budget& budget)
      : style_(style), out_(out), budget_(budget) {}

  void print(const Value& value, uint32_t level) {
    budget_.step();
    const size_t before = out_.size();
    switch (value.kind()) {
      case Kind::None:
        out_ += "null";
        break;
      case Kind::Bool:
        out_ += value.as_bool() ? "true" : "false";
        break;
      case Kind::Integer:
        out_ += int_text(value.as_int());
        break;
      case Kind::Float:
        print_float(value.as_float());
        break;
      case Kind::String:
        print_string(value.str());
        break;
      case Kind::Dict:
        print_dict(value.dict(), level);
        return;
      case Kind::Sequence:
        if (value.is_sequence(SequenceKind::List) || value.is_sequence(SequenceKind::Tuple)) {
          print_list(value.sequence().items, level);
          return;
        }
        [[fallthrough]];
      default:
        throw TemplateError("Object of type " + std::string(type_name(value)) +
                            " is not JSON serializable");
    }
    budget_.take_bytes(out_.size() - before);
  }

 private:
  void print_float(double value) {
    if (std::isnan(value)) {
      out_ += "NaN";
    } else if (std::isinf(value)) {
      out_ += value > 0 ? "Infinity" : "-Infinity";
    } else {
      out_ += float_text(value);
    }
  }

  void print_string(std::string_view text) {
    out_.push_back('"');
    for (size_t i = 0; i < text.size();) {
      const Utf8Step step = utf8_step(text, i);
      switch (step.code) {
        case '"':
          out_ += "\\\"";
          break;
        case '\\':
          out_ += "\\\\";
          break;
        case '\n':
          out_ += "\\n";
          break;
        case '\r':
          out_ += "\\r";
          break;
        case '\t':
          out_ += "\\t";
          break;
        case '\b':
          out_ += "\\b";
          break;
        case '\f':
          out_ += "\\f";
          break;
        default:
          print_character(text.substr(i, step.length), step.code);
      }
      i += step.length;
    }
    out_.push_back('"');
  }

  void print_character(std::string_view utf8, char32_t code) {
    if (code >= 0x20 && (code < 0x7F || !style_.ensure_ascii)) {
      out_ += utf8;
    } else if (code < 0x10000) {
      append_escape(out_, code);
    } else {
      append_escape(out_, 0xD800 + ((code - 0x10000) >> 10));
      append_escape(out_, 0xDC00 + ((code - 0x10000) & 0x3FFU));
    }
  }

  void break_line(uint32_t level) {
    if (style_.indent) {
      budget_.take_bytes(level * style_.indent->size());
      out_.push_back('\n');
      for (uint32_t i = 0; i < level; ++i) {
        out_ += *style_.indent;
      }
    }
  }

  void print_list(const std::vector<Value>& items, uint32_t level) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_.push_back('[');
    for (size_t i = 0; i < items.size(); ++i) {
      out_ += i == 0 ? std::string() : style_.item_separator;
      break_line(level + 1);
      print(items[i], level + 1);
    }
    break_line(level);
    out_.push_back(']');
  }

  std::string key_text(const Value& key) {
    switch (key.kind()) {
      case Kind::String:
        return key.str();
      case Kind::None:
        return "null";
      case Kind::Bool:
        return key.as_bool() ? "true" : "false";
      case Kind::Integer:
        return int_text(key.as_int());
      case Kind::Float:
        return float_text(key.as_float());
      default:
        throw TemplateError("keys must be str, int, float, bool or None, not " +
                            std::string(type_name(key)));
    }
  }

  void print_dict(const Dict& dict, uint32_t level) {
    if (dict.items().empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items()) {
      items.push_back(&item);
    }
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [this](const auto* a, const auto* b) {
        return order(a->first, b->first, "<", budget_) < 0;
      });
    }
    out_.push_back('{');
    for (size_t i = 0; i < items.size(); ++i) {
      out_ += i == 0 ? std::string() : style_.item_separator;
      break_line(level + 1);
      print_string(key_text(items[i]->first));
      out_ += style_.key_separator;
      print(items[i]->second, level + 1);
    }
    break_line(level);
    out_.push_back('}');
  }

  const JsonStyle& style_;
  std::string& out_;
  Budget& budget_;
};

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  std::string out;
  JsonPrinter(style, out, budget).print(value, 0);
  return out;
}

}  // namespace nibble::text::jinja
