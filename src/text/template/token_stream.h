// The parser's view of the tokens, and the expression parser that works on it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/template/ast.h"
#include "text/template/lexer.h"

namespace nibble::text::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<LexToken> tokens) : tokens_(std::move(tokens)) {}

  const LexToken& current() const { return tokens_[at_]; }
  const LexToken& look() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  LexToken next() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_[at_]; }
  bool is(TokenKind kind) const { return current().kind == kind; }
  bool is_operator(std::string_view text) const {
    return is(TokenKind::Operator) && current().text == text;
  }
  bool is_name(std::string_view text) const {
    return is(TokenKind::Name) && current().text == text;
  }
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  LexToken expect(TokenKind kind, std::string_view what);
  void expect_operator(std::string_view text);
  void expect_name(std::string_view text);
  [[noreturn]] void fail(const std::string& message) const;

 private:
  std::vector<LexToken> tokens_;  // ends with an End token that is never passed
  size_t at_ = 0;
};

std::string describe(const LexToken& token);

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& stream) : stream_(stream) {}

  ExprPtr expression(bool with_condition = true);
  // Comma separated expressions are a tuple. `targets`: only what can be assigned to.
  ExprPtr tuple(bool with_condition = true);
  ExprPtr target(bool allow_attribute);
  // An expression followed by filters and calls only: the call of a call block, a filter chain.
  ExprPtr unary(bool with_filter = true);
  ExprPtr filter_chain(ExprPtr input, bool begin_inline);

  // Whether the names caller, varargs and kwargs were read since the flags were last cleared.
  struct SpecialNames {
    bool caller = false;
    bool varargs = false;
    bool kwargs = false;
  };
  SpecialNames special_names;

 private:
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_math1();
  ExprPtr parse_concat();
  ExprPtr parse_math2();
  ExprPtr parse_power();
  ExprPtr primary();
  ExprPtr parenthesized();
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr node);
  ExprPtr filters_and_tests(ExprPtr node);
  ExprPtr subscript(ExprPtr node);
  ExprPtr bracket(ExprPtr node);
  ExprPtr slice_part();
  ExprPtr call(ExprPtr node);
  ExprPtr test(ExprPtr node);
  void arguments(Expr& into);
  std::string dotted_name(std::string_view what);

  struct Nested;  // counts the levels of the recursive descent
  TokenStream& stream_;
  uint32_t level_ = 0;
};

}  // namespace nibble::text::jinja
