// Oniguruma (Ruby syntax) -> PCRE2. The differences that matter for tokenizers:
//   \s       White_Space; PCRE2's own adds U+180E, so the set is written out. Same for \S.
//   \w \d \h Unicode words and digits; \h is a hexadecimal digit in Ruby, a blank in PCRE2.
//   \p{Han}  the Script property; PCRE2 from 10.40 means Script_Extensions unless told "sc:".
//   {n,m}+   two nested repeats in Ruby, a possessive repeat in PCRE2.
//   {,m}     {0,m} in Ruby, literal text in PCRE2 10.42.
//   (?m:     "dot matches newline" in Ruby, (?s: in PCRE2.
//   [a[bc]]  a union in Ruby; && is an intersection (refused).
// Ruby's $ and ^ always match at line ends: the pattern is compiled with PCRE2_MULTILINE.
#include <array>
#include <vector>

#include "text/tokenizer/regex.h"

namespace nibble::text {
namespace {

constexpr std::string_view kSpaceSet = "\\t\\n\\x0b\\f\\r\\x{85}\\p{Z}";
constexpr std::string_view kNotSpaceRanges =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"
    "\\x{3001}-\\x{10ffff}";
constexpr std::string_view kWordSet = "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}";
constexpr size_t kMaxGroupDepth = 200;

// Properties that are neither a general category nor a script.
constexpr std::array<std::string_view, 9> kBinaryProperties = {"Any",
                                                               "Alphabetic",
                                                               "Uppercase",
                                                               "Lowercase",
                                                               "White_Space",
                                                               "Emoji",
                                                               "ID_Start",
                                                               "ID_Continue",
                                                               "Extended_Pictographic"};
struct LongName {
  std::string_view onig;
  std::string_view pcre;
};
constexpr std::array<LongName, 16> kLongNames = {{{"Letter", "L"},
                                                  {"Mark", "M"},
                                                  {"Number", "N"},
                                                  {"Punctuation", "P"},
                                                  {"Symbol", "S"},
                                                  {"Separator", "Z"},
                                                  {"Other", "C"},
                                                  {"Uppercase_Letter", "Lu"},
                                                  {"Lowercase_Letter", "Ll"},
                                                  {"Titlecase_Letter", "Lt"},
                                                  {"Modifier_Letter", "Lm"},
                                                  {"Other_Letter", "Lo"},
                                                  {"Decimal_Number", "Nd"},
                                                  {"Nonspacing_Mark", "Mn"},
                                                  {"Connector_Punctuation", "Pc"},
                                                  {"Alpha", "Alphabetic"}}};

class Rewriter {
 public:
  Rewriter(std::string_view pattern, std::string_view where) : in_(pattern), where_(where) {}

  Result<std::string> run() {
    while (at_ < in_.size()) {
      TRY(step());
    }
    return std::move(out_);
  }

 private:
  Result<void> step();
  Result<void> escape(bool in_class);
  Result<void> property(bool in_class);
  Result<void> char_class();
  Result<void> class_body(size_t depth);
  void group_open();
  void repeat();
  void begin_atom() { atom_ = out_.size(); }
  tl::unexpected<Error> refuse(std::string what) const {
    return unsupported(
        "regular expression uses " + std::move(what) + " (at byte " + std::to_string(at_) + ")",
        std::string(where_));
  }

  std::string_view in_;
  std::string_view where_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;                  // where the last atom starts in out_
  std::vector<size_t> open_groups_;  // where each open group starts in out_
};

Result<void> Rewriter::step() {
  const char c = in_[at_];
  switch (c) {
    case '\\':
      begin_atom();
      return escape(false);
    case '[':
      begin_atom();
      return char_class();
    case '(':
      if (open_groups_.size() >= kMaxGroupDepth) {
        return refuse("groups nested more than 200 deep");
      }
      group_open();
      return {};
    case ')':
      out_.push_back(c);
      ++at_;
      if (!open_groups_.empty()) {
        atom_ = open_groups_.back();
        open_groups_.pop_back();
      }
      return {};
    case '{':
      repeat();
      return {};
    case '*':
    case '+':
    case '?':
      out_.push_back(c);
      ++at_;
      return {};
    default:
      if ((static_cast<unsigned char>(c) & 0xC0U) != 0x80U) {
        begin_atom();
      }
      out_.push_back(c);
      ++at_;
      return {};
  }
}

void Rewriter::group_open() {
  open_groups_.push_back(out_.size());
  out_.push_back('(');
  ++at_;
  if (at_ + 1 >= in_.size() || in_[at_] != '?') {
    return;
  }
  // Options (?imx-imx: ...): Ruby's m is PCRE2's s. Other (? constructs are spelt alike.
  size_t end = at_ + 1;
  while (end < in_.size() &&
         (in_[end] == 'i' || in_[end] == 'm' || in_[end] == 'x' || in_[end] == '-')) {
    ++end;
  }
  if (end < in_.size() && end > at_ + 1 && (in_[end] == ':' || in_[end] == ')')) {
    for (; at_ < end; ++at_) {
      out_.push_back(in_[at_] == 'm' ? 's' : in_[at_]);
    }
  } else {
    out_.push_back('?');
    ++at_;
  }
}

void Rewriter::repeat() {
  size_t end = at_ + 1;
  bool digits = false;
  while (end < in_.size() && ((in_[end] >= '0' && in_[end] <= '9') || in_[end] == ',')) {
    digits = digits || in_[end] != ',';
    ++end;
  }
  if (!digits || end >= in_.size() || in_[end] != '}') {
    begin_atom();
    out_ += "\\{";
    ++at_;
    return;
  }
  std::string interval = "{";
  if (in_[at_ + 1] == ',') {
    interval.push_back('0');
  }
  interval.append(in_, at_ + 1, end - at_);
  at_ = end + 1;
  out_ += interval;
  if (at_ < in_.size() && in_[at_] == '+') {
    out_.insert(atom_, "(?:");
    out_.push_back(')');
  }
}

Result<void> Rewriter::escape(bool in_class) {
  if (at_ + 1 >= in_.size()) {
    return refuse("a backslash at its end");
  }
  const char c = in_[at_ + 1];
  const auto set = [&](std::string_view body, bool negated) {
    if (in_class) {
      out_ += body;
    } else {
      out_ += negated ? "[^" : "[";
      out_ += body;
      out_ += "]";
    }
    at_ += 2;
  };
  switch (c) {
    case 's':
      set(kSpaceSet, false);
      return {};
    case 'S':
      set(in_class ? kNotSpaceRanges : kSpaceSet, true);
      return {};
    case 'w':
      set(kWordSet, false);
      return {};
    case 'W':
      if (in_class) {
        return refuse("\\W inside a character class");
      }
      set(kWordSet, true);
      return {};
    case 'd':
      out_ += "\\p{Nd}";
      at_ += 2;
      return {};
    case 'D':
      out_ += "\\P{Nd}";
      at_ += 2;
      return {};
    case 'h':
      set("0-9a-fA-F", false);
      return {};
    case 'H':
      if (in_class) {
        return refuse("\\H inside a character class");
      }
      set("0-9a-fA-F", true);
      return {};
    case 'u':
      if (at_ + 6 > in_.size()) {
        return refuse("\\u without four hexadecimal digits");
      }
      out_ += "\\x{" + std::string(in_.substr(at_ + 2, 4)) + "}";
      at_ += 6;
      return {};
    case 'p':
    case 'P':
      return property(in_class);
    case 'x':
      if (at_ + 2 < in_.size() && in_[at_ + 2] == '{') {
        const size_t close = in_.find('}', at_);
        if (close != std::string_view::npos) {
          out_.append(in_, at_, close + 1 - at_);
          at_ = close + 1;
          return {};
        }
      }
      break;
    case 'y':
    case 'Y':
    case 'g':
    case 'k':
    case 'K':
    case 'O':
    case 'C':
    case 'M':
      return refuse(std::string("\\") + c);
    default:
      break;
  }
  out_.append(in_, at_, 2);  // a multi-byte character's other bytes follow as plain text
  at_ += 2;
  return {};
}

Result<void> Rewriter::property(bool in_class) {
  static_cast<void>(in_class);
  const size_t start = at_;
  if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{') {
    return refuse("\\p without braces");
  }
  const size_t close = in_.find('}', at_);
  if (close == std::string_view::npos) {
    return refuse("\\p{ without }");
  }
  bool negated = in_[at_ + 1] == 'P';
  std::string_view name = in_.substr(start + 3, close - start - 3);
  if (!name.empty() && name[0] == '^') {
    negated = !negated;
    name.remove_prefix(1);
  }
  std::string translated(name);
  for (const LongName& entry : kLongNames) {
    if (entry.onig == name) {
      translated = entry.pcre;
    }
  }
  bool binary = false;
  for (const std::string_view known : kBinaryProperties) {
    binary = binary || known == translated;
  }
  if (translated.size() > 2 && !binary) {
    translated = "sc:" + translated;
  }
  out_ += negated ? "\\P{" : "\\p{";
  out_ += translated + "}";
  at_ = close + 1;
  return {};
}

Result<void> Rewriter::char_class() {
  out_.push_back('[');
  ++at_;
  if (at_ < in_.size() && in_[at_] == '^') {
    out_.push_back('^');
    ++at_;
  }
  if (at_ < in_.size() && in_[at_] == ']') {
    out_ += "\\]";
    ++at_;
  }
  TRY(class_body(0));
  out_.push_back(']');
  return {};
}

// Up to and including the closing bracket, which is not written.
Result<void> Rewriter::class_body(size_t depth) {
  while (at_ < in_.size()) {
    const char c = in_[at_];
    if (c == ']') {
      ++at_;
      return {};
    }
    if (c == '\\') {
      TRY(escape(true));
    } else if (c == '[' && at_ + 1 < in_.size() && in_[at_ + 1] == ':') {
      const size_t close = in_.find(":]", at_);
      if (close == std::string_view::npos) {
        return refuse("[: without :]");
      }
      out_.append(in_, at_, close + 2 - at_);
      at_ = close + 2;
    } else if (c == '[') {
      if (depth >= kMaxGroupDepth || (at_ + 1 < in_.size() && in_[at_ + 1] == '^')) {
        return refuse("a negated character class inside another");
      }
      ++at_;
      TRY(class_body(depth + 1));
    } else if (c == '&' && at_ + 1 < in_.size() && in_[at_ + 1] == '&') {
      return refuse("an intersection of character classes (&&)");
    } else {
      out_.push_back(c);
      ++at_;
    }
  }
  return refuse("an unclosed character class");
}

}  // namespace

Result<std::string> rewrite_onig_pattern(std::string_view pattern, std::string_view where) {
  return Rewriter(pattern, where).run();
}

}  // namespace nibble::text
