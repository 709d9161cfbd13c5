#include <algorithm>
#include <cstdlib>

#include "text/template/token_stream.h"

namespace nibble::text::jinja {
namespace {

std::unique_ptr<Expr> make(ExprKind kind, int line) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

// Fixes the depth of a finished node and checks it.
ExprPtr done(std::unique_ptr<Expr> expr) {
  uint32_t depth = 0;
  const auto look = [&depth](const ExprPtr& child) {
    depth = child ? std::max(depth, child->depth) : depth;
  };
  std::for_each(expr->children.begin(), expr->children.end(), look);
  for (const auto& [name, value] : expr->named) {
    look(value);
  }
  look(expr->spread_list);
  look(expr->spread_dict);
  expr->depth = depth + 1;
  if (expr->depth > kMaxExpressionDepth) {
    throw TemplateError("line " + std::to_string(expr->line) + ": expression is nested too deep",
                        ErrorCode::TooLarge);
  }
  return expr;
}

ExprPtr make_unary(ExprKind kind, int line, ExprPtr operand) {
  auto expr = make(kind, line);
  expr->children.push_back(std::move(operand));
  return done(std::move(expr));
}

ExprPtr make_binary(ExprKind kind, ExprPtr left, ExprPtr right) {
  auto expr = make(kind, left->line);
  expr->children.push_back(std::move(left));
  expr->children.push_back(std::move(right));
  return done(std::move(expr));
}

ExprPtr make_operation(Operator op, ExprPtr left, ExprPtr right) {
  auto expr = make(ExprKind::Binary, left->line);
  expr->operators.push_back(op);
  expr->children.push_back(std::move(left));
  expr->children.push_back(std::move(right));
  return done(std::move(expr));
}

ExprPtr make_constant(int line, Value value) {
  auto expr = make(ExprKind::Constant, line);
  expr->constant = std::move(value);
  return expr;
}

Int parse_integer(const TokenStream& stream, const std::string& text) {
  int base = 10;
  size_t at = 0;
  if (text.size() > 2 && text[0] == '0') {
    const char kind = static_cast<char>(text[1] | 0x20);
    base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    at = base == 10 ? 0 : 2;
  }
  Int value = 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    if (digit >= base || value > Int{INT64_MAX}) {
      stream.fail("bad or too large integer '" + text + "'");
    }
    value = value * base + digit;
  }
  return value;
}

bool is_reserved(std::string_view name) {
  static constexpr std::string_view kNames[] = {"true", "false", "none", "True", "False", "None"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace

struct ExpressionParser::Nested {
  explicit Nested(ExpressionParser& owner) : parser(owner) {
    if (++parser.level_ > kMaxExpressionDepth) {
      throw TemplateError("expression is nested too deep", ErrorCode::TooLarge);
    }
  }
  ~Nested() { --parser.level_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;
  ExpressionParser& parser;
};

ExprPtr ExpressionParser::expression(bool with_condition) {
  const Nested nested(*this);
  if (!with_condition) {
    return parse_or();
  }
  const int line = stream_.current().line;
  ExprPtr result = parse_or();
  while (stream_.skip_name("if")) {
    auto condition = make(ExprKind::Condition, line);
    condition->children.push_back(parse_or());
    condition->children.push_back(std::move(result));
    condition->children.push_back(stream_.skip_name("else") ? expression() : nullptr);
    result = done(std::move(condition));
  }
  return result;
}

ExprPtr ExpressionParser::parse_or() {
  ExprPtr left = parse_and();
  while (stream_.skip_name("or")) {
    left = make_binary(ExprKind::Or, std::move(left), parse_and());
  }
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  ExprPtr left = parse_not();
  while (stream_.skip_name("and")) {
    left = make_binary(ExprKind::And, std::move(left), parse_not());
  }
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  const Nested nested(*this);
  const int line = stream_.current().line;
  if (stream_.skip_name("not")) {
    return make_unary(ExprKind::Not, line, parse_not());
  }
  return parse_compare();
}

ExprPtr ExpressionParser::parse_compare() {
  ExprPtr first = parse_math1();
  auto compare = make(ExprKind::Compare, first->line);
  compare->children.push_back(std::move(first));
  for (;;) {
    Operator op = Operator::Equal;
    if (stream_.skip_operator("==")) {
      op = Operator::Equal;
    } else if (stream_.skip_operator("!=")) {
      op = Operator::NotEqual;
    } else if (stream_.skip_operator("<=")) {
      op = Operator::LessEqual;
    } else if (stream_.skip_operator(">=")) {
      op = Operator::GreaterEqual;
    } else if (stream_.skip_operator("<")) {
      op = Operator::Less;
    } else if (stream_.skip_operator(">")) {
      op = Operator::Greater;
    } else if (stream_.skip_name("in")) {
      op = Operator::In;
    } else if (stream_.is_name("not") && stream_.look().kind == TokenKind::Name &&
               stream_.look().text == "in") {
      stream_.next();
      stream_.next();
      op = Operator::NotIn;
    } else {
      break;
    }
    compare->operators.push_back(op);
    compare->children.push_back(parse_math1());
  }
  if (compare->operators.empty()) {
    return std::move(compare->children[0]);
  }
  return done(std::move(compare));
}

ExprPtr ExpressionParser::parse_math1() {
  ExprPtr left = parse_concat();
  for (;;) {
    if (stream_.skip_operator("+")) {
      left = make_operation(Operator::Add, std::move(left), parse_concat());
    } else if (stream_.skip_operator("-")) {
      left = make_operation(Operator::Subtract, std::move(left), parse_concat());
    } else {
      return left;
    }
  }
}

ExprPtr ExpressionParser::parse_concat() {
  ExprPtr first = parse_math2();
  if (!stream_.is_operator("~")) {
    return first;
  }
  auto concat = make(ExprKind::Concat, first->line);
  concat->children.push_back(std::move(first));
  while (stream_.skip_operator("~")) {
    concat->children.push_back(parse_math2());
  }
  return done(std::move(concat));
}

ExprPtr ExpressionParser::parse_math2() {
  ExprPtr left = parse_power();
  for (;;) {
    Operator op = Operator::Multiply;
    if (stream_.skip_operator("*")) {
      op = Operator::Multiply;
    } else if (stream_.skip_operator("//")) {
      op = Operator::FloorDivide;
    } else if (stream_.skip_operator("/")) {
      op = Operator::Divide;
    } else if (stream_.skip_operator("%")) {
      op = Operator::Modulo;
    } else {
      return left;
    }
    left = make_operation(op, std::move(left), parse_power());
  }
}

ExprPtr ExpressionParser::parse_power() {
  ExprPtr left = unary();
  while (stream_.skip_operator("**")) {  // Jinja's is left-associative
    left = make_operation(Operator::Power, std::move(left), unary());
  }
  return left;
}

ExprPtr ExpressionParser::unary(bool with_filter) {
  const Nested nested(*this);
  const int line = stream_.current().line;
  ExprPtr node;
  if (stream_.skip_operator("-")) {
    node = make_unary(ExprKind::Negate, line, unary(false));
  } else if (stream_.skip_operator("+")) {
    node = make_unary(ExprKind::Positive, line, unary(false));
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filter ? filters_and_tests(std::move(node)) : std::move(node);
}

ExprPtr ExpressionParser::primary() {
  const LexToken token = stream_.next();
  switch (token.kind) {
    case TokenKind::Name: {
      if (token.text == "true" || token.text == "True") {
        return make_constant(token.line, Value::of_bool(true));
      }
      if (token.text == "false" || token.text == "False") {
        return make_constant(token.line, Value::of_bool(false));
      }
      if (token.text == "none" || token.text == "None") {
        return make_constant(token.line, Value());
      }
      special_names.caller |= token.text == "caller";
      special_names.varargs |= token.text == "varargs";
      special_names.kwargs |= token.text == "kwargs";
      auto name = make(ExprKind::Name, token.line);
      name->text = token.text;
      return name;
    }
    case TokenKind::String: {
      std::string text = token.text;
      while (stream_.is(TokenKind::String)) {
        text += stream_.next().text;
      }
      return make_constant(token.line, Value::of_string(std::move(text)));
    }
    case TokenKind::Integer:
      return make_constant(token.line, Value::of_int(parse_integer(stream_, token.text)));
    case TokenKind::Float:
      return make_constant(token.line, Value::of_float(std::strtod(token.text.c_str(), nullptr)));
    case TokenKind::Operator:
      if (token.text == "(") {
        return parenthesized();
      }
      if (token.text == "[") {
        return list();
      }
      if (token.text == "{") {
        return dict();
      }
      break;
    default:
      break;
  }
  stream_.fail("unexpected " + describe(token));
}

// After the opening parenthesis: an expression, or a tuple when there is a comma or nothing.
ExprPtr ExpressionParser::parenthesized() {
  const int line = stream_.current().line;
  auto items = make(ExprKind::Tuple, line);
  bool comma = false;
  while (!stream_.is_operator(")")) {
    items->children.push_back(expression());
    if (!stream_.skip_operator(",")) {
      break;
    }
    comma = true;
  }
  stream_.expect_operator(")");
  if (items->children.size() == 1 && !comma) {
    return std::move(items->children[0]);
  }
  return done(std::move(items));
}

ExprPtr ExpressionParser::list() {
  auto items = make(ExprKind::List, stream_.current().line);
  while (!stream_.is_operator("]")) {
    items->children.push_back(expression());
    if (!stream_.skip_operator(",")) {
      break;
    }
  }
  stream_.expect_operator("]");
  return done(std::move(items));
}

ExprPtr ExpressionParser::dict() {
  auto items = make(ExprKind::Dict, stream_.current().line);
  while (!stream_.is_operator("}")) {
    items->children.push_back(expression());
    stream_.expect_operator(":");
    items->children.push_back(expression());
    if (!stream_.skip_operator(",")) {
      break;
    }
  }
  stream_.expect_operator("}");
  return done(std::move(items));
}

ExprPtr ExpressionParser::tuple(bool with_condition) {
  ExprPtr first = expression(with_condition);
  if (!stream_.is_operator(",")) {
    return first;
  }
  auto items = make(ExprKind::Tuple, first->line);
  items->children.push_back(std::move(first));
  while (stream_.skip_operator(",")) {
    if (stream_.is(TokenKind::BlockEnd) || stream_.is(TokenKind::VariableEnd) ||
        stream_.is_name("recursive")) {
      break;
    }
    items->children.push_back(expression(with_condition));
  }
  return done(std::move(items));
}

ExprPtr ExpressionParser::target(bool allow_attribute) {
  const Nested nested(*this);
  auto items = make(ExprKind::Tuple, stream_.current().line);
  bool comma = false;
  do {
    if (stream_.is_name("in") || stream_.is_operator("=") || stream_.is_operator(")")) {
      break;
    }
    if (stream_.skip_operator("(")) {
      items->children.push_back(target(allow_attribute));
      stream_.expect_operator(")");
    } else {
      const LexToken token = stream_.expect(TokenKind::Name, "a name");
      if (is_reserved(token.text)) {
        stream_.fail("cannot assign to '" + token.text + "'");
      }
      auto name = make(ExprKind::Name, token.line);
      name->text = token.text;
      if (allow_attribute && stream_.skip_operator(".")) {
        auto attribute = make(ExprKind::Attribute, token.line);
        attribute->text = stream_.expect(TokenKind::Name, "an attribute name").text;
        attribute->children.push_back(std::move(name));
        name = std::move(attribute);
      }
      items->children.push_back(std::move(name));
    }
    if (!stream_.is_operator(",")) {
      break;
    }
    comma = true;
  } while (stream_.skip_operator(","));
  if (items->children.empty()) {
    stream_.fail("expected a name to assign to, found " + describe(stream_.current()));
  }
  if (items->children.size() == 1 && !comma) {
    return std::move(items->children[0]);
  }
  return done(std::move(items));
}

ExprPtr ExpressionParser::postfix(ExprPtr node) {
  for (;;) {
    if (stream_.is_operator(".") || stream_.is_operator("[")) {
      node = subscript(std::move(node));
    } else if (stream_.is_operator("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr node) {
  for (;;) {
    if (stream_.is_operator("|")) {
      node = filter_chain(std::move(node), false);
    } else if (stream_.is_name("is")) {
      node = test(std::move(node));
    } else if (stream_.is_operator("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr node) {
  if (!stream_.skip_operator(".")) {
    stream_.expect_operator("[");
    return bracket(std::move(node));
  }
  const LexToken token = stream_.next();
  if (token.kind == TokenKind::Name) {
    auto attribute = make(ExprKind::Attribute, token.line);
    attribute->text = token.text;
    attribute->children.push_back(std::move(node));
    return done(std::move(attribute));
  }
  if (token.kind != TokenKind::Integer) {
    stream_.fail("expected a name or a number after '.', found " + describe(token));
  }
  return make_binary(ExprKind::Item,
                     std::move(node),
                     make_constant(token.line, Value::of_int(parse_integer(stream_, token.text))));
}

ExprPtr ExpressionParser::slice_part() {
  if (stream_.is_operator(":") || stream_.is_operator("]") || stream_.is_operator(",")) {
    return nullptr;
  }
  return expression();
}

ExprPtr ExpressionParser::bracket(ExprPtr node) {
  const int line = node->line;
  ExprPtr first = slice_part();
  if (stream_.is_operator(":")) {
    auto slice = make(ExprKind::Slice, line);
    slice->children.push_back(std::move(node));
    slice->children.push_back(std::move(first));
    for (int i = 0; i < 2; ++i) {
      slice->children.push_back(stream_.skip_operator(":") ? slice_part() : nullptr);
    }
    stream_.expect_operator("]");
    return done(std::move(slice));
  }
  if (!first) {
    stream_.fail("expected a subscript");
  }
  if (stream_.is_operator(",")) {
    auto items = make(ExprKind::Tuple, line);
    items->children.push_back(std::move(first));
    while (stream_.skip_operator(",")) {
      items->children.push_back(expression());
    }
    first = done(std::move(items));
  }
  stream_.expect_operator("]");
  return make_binary(ExprKind::Item, std::move(node), std::move(first));
}

void ExpressionParser::arguments(Expr& into) {
  stream_.expect_operator("(");
  bool first = true;
  while (!stream_.is_operator(")")) {
    if (!first) {
      stream_.expect_operator(",");
      if (stream_.is_operator(")")) {
        break;
      }
    }
    first = false;
    if (stream_.skip_operator("**")) {
      into.spread_dict = expression();
    } else if (stream_.skip_operator("*")) {
      into.spread_list = expression();
    } else if (stream_.is(TokenKind::Name) && stream_.look().kind == TokenKind::Operator &&
               stream_.look().text == "=") {
      std::string name = stream_.next().text;
      stream_.next();
      into.named.emplace_back(std::move(name), expression());
    } else {
      if (!into.named.empty() || into.spread_dict || into.spread_list) {
        stream_.fail("a positional argument follows a named one");
      }
      into.children.push_back(expression());
    }
  }
  stream_.expect_operator(")");
}

ExprPtr ExpressionParser::call(ExprPtr node) {
  auto expr = make(ExprKind::Call, node->line);
  expr->children.push_back(std::move(node));
  arguments(*expr);
  return done(std::move(expr));
}

std::string ExpressionParser::dotted_name(std::string_view what) {
  std::string name = stream_.expect(TokenKind::Name, what).text;
  while (stream_.skip_operator(".")) {
    name += "." + stream_.expect(TokenKind::Name, what).text;
  }
  return name;
}

// `begin_inline`: the first filter has no bar before it, as in {% filter upper %}.
ExprPtr ExpressionParser::filter_chain(ExprPtr input, bool begin_inline) {
  while (begin_inline || stream_.skip_operator("|")) {
    begin_inline = false;
    auto filter = make(ExprKind::Filter, stream_.current().line);
    filter->text = dotted_name("a filter name");
    filter->children.push_back(std::move(input));
    if (stream_.is_operator("(")) {
      arguments(*filter);
    }
    input = done(std::move(filter));
  }
  return input;
}

ExprPtr ExpressionParser::test(ExprPtr node) {
  const int line = stream_.current().line;
  stream_.expect_name("is");
  const bool negated = stream_.skip_name("not");
  auto expr = make(ExprKind::Test, line);
  expr->text = dotted_name("a test name");
  expr->children.push_back(std::move(node));
  if (stream_.is_operator("(")) {
    arguments(*expr);
  } else {
    const LexToken& token = stream_.current();
    const bool value = token.kind == TokenKind::Name || token.kind == TokenKind::String ||
                       token.kind == TokenKind::Integer || token.kind == TokenKind::Float ||
                       stream_.is_operator("[") || stream_.is_operator("{");
    if (value && !stream_.is_name("else") && !stream_.is_name("or") && !stream_.is_name("and")) {
      if (stream_.is_name("is")) {
        stream_.fail("tests cannot be chained with is");
      }
      const Nested nested(*this);
      ExprPtr argument = primary();
      expr->children.push_back(postfix(std::move(argument)));
    }
  }
  ExprPtr result = done(std::move(expr));
  return negated ? make_unary(ExprKind::Not, line, std::move(result)) : std::move(result);
}

}  // namespace nibble::text::jinja
