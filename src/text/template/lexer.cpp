#include "text/template/lexer.h"

#include <array>

#include "text/template/template_error.h"
#include "text/tokenizer/unicode.h"

namespace nibble::text::jinja {
namespace {

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      i += i + 1 < source.size() && source[i + 1] == '\n' ? 1 : 0;
    } else {
      out.push_back(source[i]);
    }
  }
  return out;
}

bool is_name_start(char32_t code) {
  return code == '_' || (code < 0x80 ? (code | 0x20) >= 'a' && (code | 0x20) <= 'z'
                                     : is_unicode_word(code) && !is_unicode_number(code));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {
    if (source_.ends_with('\n')) {
      source_.pop_back();
    }
  }

  std::vector<LexToken> run() {
    while (at_ < source_.size()) {
      root();
    }
    emit(TokenKind::End, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw TemplateError("line " + std::to_string(line_) + ": " + message);
  }
  void emit(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(size_t to) {
    for (; at_ < to; ++at_) {
      line_ += source_[at_] == '\n' ? 1 : 0;
    }
  }
  char peek(size_t offset = 0) const {
    return at_ + offset < source_.size() ? source_[at_ + offset] : '\0';
  }

  size_t skip_space(size_t at) const {
    while (at < source_.size()) {
      const Utf8Step step = utf8_step(source_, at);
      if (!is_python_space(step.code)) {
        break;
      }
      at += step.length;
    }
    return at;
  }

  // Literal text up to a tag that begins with `sign` ('-', '+' or none).
  void data(std::string_view text, char sign, bool block_or_comment) {
    std::string_view kept = text;
    if (sign == '-') {
      while (!kept.empty()) {
        const size_t last = previous_utf8(kept, kept.size());
        if (!is_python_space(utf8_step(kept, last).code)) {
          break;
        }
        kept = kept.substr(0, last);
      }
    } else if (sign != '+' && block_or_comment) {
      const size_t newline = kept.rfind('\n');
      const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
      if (line_start > 0 || line_starting_) {
        size_t end = line_start;
        while (end < kept.size()) {
          const Utf8Step step = utf8_step(kept, end);
          if (!is_python_space(step.code)) {
            break;
          }
          end += step.length;
        }
        if (end == kept.size()) {
          kept = kept.substr(0, line_start);
        }
      }
    }
    if (!kept.empty()) {
      emit(TokenKind::Data, std::string(kept));
    }
  }

  void root() {
    size_t open = source_.find('{', at_);
    while (open != std::string::npos &&
           (open + 1 >= source_.size() ||
            (source_[open + 1] != '{' && source_[open + 1] != '%' && source_[open + 1] != '#'))) {
      open = source_.find('{', open + 1);
    }
    if (open == std::string::npos) {
      emit(TokenKind::Data, source_.substr(at_));
      advance(source_.size());
      return;
    }
    const char type = source_[open + 1];
    const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    const std::string_view text = std::string_view(source_).substr(at_, open - at_);
    data(text, has_sign ? sign : '\0', type != '{');
    advance(open + 2 + (has_sign ? 1 : 0));
    line_starting_ = false;
    if (type == '#') {
      comment();
    } else if (type == '%') {
      if (!raw()) {
        emit(TokenKind::BlockBegin, "");
        inside('%');
      }
    } else {
      emit(TokenKind::VariableBegin, "");
      inside('{');
    }
  }

  // After the closing brace of a block or comment: the newline that trim_blocks removes.
  void after_block(bool plus) {
    if (!plus && peek() == '\n') {
      advance(at_ + 1);
      line_starting_ = true;
    }
  }

  void comment() {
    const size_t close = source_.find("#}", at_);
    if (close == std::string::npos) {
      fail("missing end of comment tag");
    }
    const char sign = close > at_ ? source_[close - 1] : '\0';
    advance(close + 2);
    if (sign == '-') {
      strip_after();
    } else {
      after_block(sign == '+');
    }
  }

  void strip_after() {
    const size_t before = at_;
    advance(skip_space(at_));
    line_starting_ = at_ > before && source_[at_ - 1] == '\n';
  }

  bool raw() {
    size_t at = skip_space(at_);
    if (source_.compare(at, 3, "raw") != 0) {
      return false;
    }
    at = skip_space(at + 3);
    const bool minus = at < source_.size() && source_[at] == '-';
    at += minus ? 1 : 0;
    if (source_.compare(at, 2, "%}") != 0) {
      return false;
    }
    advance(at + 2);
    if (minus) {
      advance(skip_space(at_));
    }
    raw_body();
    return true;
  }

  void raw_body() {
    for (size_t open = source_.find("{%", at_); open != std::string::npos;
         open = source_.find("{%", open + 1)) {
      size_t at = open + 2;
      const char begin_sign = at < source_.size() ? source_[at] : '\0';
      const bool has_sign = begin_sign == '-' || begin_sign == '+';
      at = skip_space(at + (has_sign ? 1 : 0));
      if (source_.compare(at, 6, "endraw") != 0) {
        continue;
      }
      at = skip_space(at + 6);
      const char end_sign = at < source_.size() ? source_[at] : '\0';
      at += end_sign == '-' || end_sign == '+' ? 1 : 0;
      if (source_.compare(at, 2, "%}") != 0) {
        continue;
      }
      line_starting_ = false;
      data(std::string_view(source_).substr(at_, open - at_), has_sign ? begin_sign : '\0', true);
      advance(at + 2);
      if (end_sign == '-') {
        strip_after();
      } else {
        after_block(end_sign == '+');
      }
      return;
    }
    fail("missing end of raw directive");
  }

  // The tokens of a tag up to and including its end; `open` is '%' or '{'.
  void inside(char open) {
    std::string balance;
    while (at_ < source_.size()) {
      if (balance.empty() && tag_end(open)) {
        return;
      }
      const Utf8Step step = utf8_step(source_, at_);
      const char c = source_[at_];
      if (is_python_space(step.code)) {
        advance(at_ + step.length);
      } else if (is_digit(c) && number()) {
      } else if (is_name_start(step.code)) {
        name();
      } else if (c == '"' || c == '\'') {
        string();
      } else {
        operator_token(balance);
      }
    }
    fail(open == '%' ? "unexpected end of template, expected '%}'"
                     : "unexpected end of template, expected '}}'");
  }

  bool tag_end(char open) {
    const std::string_view rest = std::string_view(source_).substr(at_);
    const bool block = open == '%';
    const std::string_view close = block ? "%}" : "}}";
    if (rest.starts_with('-') && rest.substr(1).starts_with(close)) {
      advance(at_ + 3);
      emit(block ? TokenKind::BlockEnd : TokenKind::VariableEnd, "");
      strip_after();
      return true;
    }
    const bool plus = block && rest.starts_with('+') && rest.substr(1).starts_with(close);
    if (!plus && !rest.starts_with(close)) {
      return false;
    }
    advance(at_ + (plus ? 3 : 2));
    emit(block ? TokenKind::BlockEnd : TokenKind::VariableEnd, "");
    line_starting_ = false;
    if (block) {
      after_block(plus);
    }
    return true;
  }

  void name() {
    size_t end = at_;
    while (end < source_.size()) {
      const Utf8Step step = utf8_step(source_, end);
      if (!is_name_start(step.code) && !is_unicode_word(step.code)) {
        break;
      }
      end += step.length;
    }
    emit(TokenKind::Name, source_.substr(at_, end - at_));
    advance(end);
  }

  size_t digits(size_t at) const {
    while (at < source_.size() &&
           (is_digit(source_[at]) ||
            (source_[at] == '_' && at + 1 < source_.size() && is_digit(source_[at + 1])))) {
      ++at;
    }
    return at;
  }

  bool number() {
    const char second = static_cast<char>(peek(1) | 0x20);
    if (peek() == '0' && (second == 'x' || second == 'o' || second == 'b')) {
      size_t end = at_ + 2;
      while (end < source_.size() &&
             (is_digit(source_[end]) || source_[end] == '_' ||
              ((source_[end] | 0x20) >= 'a' && (source_[end] | 0x20) <= 'f'))) {
        ++end;
      }
      number_token(TokenKind::Integer, end);
      return true;
    }
    size_t end = digits(at_);
    bool is_float = false;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';  // a.0.5: two integers
    if (!after_dot && end + 1 < source_.size() && source_[end] == '.' &&
        is_digit(source_[end + 1])) {
      end = digits(end + 1);
      is_float = true;
    }
    if (!after_dot && end < source_.size() && (source_[end] | 0x20) == 'e') {
      const size_t sign =
          end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
      if (end + 1 + sign < source_.size() && is_digit(source_[end + 1 + sign])) {
        end = digits(end + 1 + sign);
        is_float = true;
      }
    }
    number_token(is_float ? TokenKind::Float : TokenKind::Integer, end);
    return true;
  }

  void number_token(TokenKind kind, size_t end) {
    std::string text;
    for (size_t i = at_; i < end; ++i) {
      if (source_[i] != '_') {
        text.push_back(source_[i]);
      }
    }
    emit(kind, std::move(text));
    advance(end);
  }

  void string() {
    const char quote = source_[at_];
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) {
      end += source_[end] == '\\' ? 2 : 1;
    }
    if (end >= source_.size()) {
      fail("unclosed string");
    }
    emit(TokenKind::String, unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance(end + 1);
  }

  std::string unescape(std::string_view text) const;
  void operator_token(std::string& balance);

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<LexToken> tokens_;
};

std::string Lexer::unescape(std::string_view text) const {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 >= text.size()) {
      out.push_back(text[i]);
      continue;
    }
    const char c = text[++i];
    static constexpr std::string_view kFrom = "abfnrtv\\'\"";
    static constexpr std::string_view kTo = "\a\b\f\n\r\t\v\\'\"";
    const size_t simple = kFrom.find(c);
    const size_t hex_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (simple != std::string_view::npos) {
      out.push_back(kTo[simple]);
    } else if (c == '\n') {  // a line that goes on
    } else if (hex_digits > 0 || (c >= '0' && c <= '7')) {
      uint32_t code = 0;
      size_t used = 0;
      const size_t most = hex_digits > 0 ? hex_digits : 3;
      i += hex_digits > 0 ? 1 : 0;
      for (; used < most && i + used < text.size(); ++used) {
        const char d = text[i + used];
        const char lower = static_cast<char>(d | 0x20);
        const bool octal = hex_digits == 0;
        if (is_digit(d) && (!octal || d < '8')) {
          code = code * (octal ? 8 : 16) + static_cast<uint32_t>(d - '0');
        } else if (!octal && lower >= 'a' && lower <= 'f') {
          code = code * 16 + static_cast<uint32_t>(lower - 'a' + 10);
        } else {
          break;
        }
      }
      if ((hex_digits > 0 && used < hex_digits) || code > 0x10FFFF ||
          (code >= 0xD800 && code <= 0xDFFF)) {
        fail("bad escape in a string");
      }
      append_utf8(out, code);
      i += used - 1;
    } else {
      out.push_back('\\');
      out.push_back(c);
    }
  }
  return out;
}

void Lexer::operator_token(std::string& balance) {
  static constexpr std::array<std::string_view, 6> kTwo = {"//", "**", "==", "!=", ">=", "<="};
  static constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,;";
  const std::string_view rest = std::string_view(source_).substr(at_);
  for (const std::string_view two : kTwo) {
    if (rest.starts_with(two)) {
      emit(TokenKind::Operator, std::string(two));
      advance(at_ + 2);
      return;
    }
  }
  const char c = rest[0];
  if (kOne.find(c) == std::string_view::npos) {
    fail("unexpected char '" + std::string(rest.substr(0, utf8_step(rest, 0).length)) + "'");
  }
  if (c == '(' || c == '[' || c == '{') {
    balance.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
  } else if (c == ')' || c == ']' || c == '}') {
    if (balance.empty() || balance.back() != c) {
      fail("unexpected '" + std::string(1, c) + "'");
    }
    balance.pop_back();
  }
  emit(TokenKind::Operator, std::string(1, c));
  advance(at_ + 1);
}

}  // namespace

std::vector<LexToken> tokenize(std::string_view source) { return Lexer(source).run(); }

bool is_python_space(char32_t code) {
  return is_unicode_space(code) || (code >= 0x1C && code <= 0x1F);
}

}  // namespace nibble::text::jinja
