#include "text/template/parser.h"

#include <algorithm>
#include <initializer_list>

#include "text/template/token_stream.h"

namespace nibble::text::jinja {

bool TokenStream::skip_operator(std::string_view text) {
  if (!is_operator(text)) {
    return false;
  }
  next();
  return true;
}

bool TokenStream::skip_name(std::string_view text) {
  if (!is_name(text)) {
    return false;
  }
  next();
  return true;
}

LexToken TokenStream::expect(TokenKind kind, std::string_view what) {
  if (!is(kind)) {
    fail("expected " + std::string(what) + ", found " + describe(current()));
  }
  return next();
}

void TokenStream::expect_operator(std::string_view text) {
  if (!skip_operator(text)) {
    fail("expected '" + std::string(text) + "', found " + describe(current()));
  }
}

void TokenStream::expect_name(std::string_view text) {
  if (!skip_name(text)) {
    fail("expected '" + std::string(text) + "', found " + describe(current()));
  }
}

void TokenStream::fail(const std::string& message) const {
  throw TemplateError("line " + std::to_string(current().line) + ": " + message);
}

std::string describe(const LexToken& token) {
  switch (token.kind) {
    case TokenKind::Data:
      return "text";
    case TokenKind::VariableBegin:
      return "'{{'";
    case TokenKind::VariableEnd:
      return "'}}'";
    case TokenKind::BlockBegin:
      return "'{%'";
    case TokenKind::BlockEnd:
      return "'%}'";
    case TokenKind::String:
      return "a string";
    case TokenKind::End:
      return "the end of the template";
    default:
      return "'" + token.text + "'";
  }
}

namespace {

std::unique_ptr<Stmt> make(StmtKind kind, int line) {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = kind;
  stmt->line = line;
  return stmt;
}

class Parser {
 public:
  explicit Parser(TokenStream& stream) : stream_(stream), expressions_(stream) {}

  // Statements up to a tag named in `until` (its name is not consumed), or to the end.
  Body body(std::initializer_list<std::string_view> until);

 private:
  StmtPtr statement();
  StmtPtr for_statement();
  StmtPtr if_statement();
  StmtPtr set_statement();
  StmtPtr macro_statement();
  StmtPtr call_statement();
  StmtPtr filter_statement();
  StmtPtr with_statement();
  StmtPtr scoped_statement();
  std::vector<Parameter> parameters();
  // A macro body with the special names it uses.
  void macro_body(Stmt& stmt, std::string_view end);
  // The body up to {% end %}, whose name is consumed.
  Body block(std::string_view end);
  void end_tag() { stream_.expect(TokenKind::BlockEnd, "'%}'"); }

  TokenStream& stream_;
  ExpressionParser expressions_;
  uint32_t level_ = 0;
  uint32_t loops_ = 0;
};

Body Parser::body(std::initializer_list<std::string_view> until) {
  if (++level_ > kMaxExpressionDepth) {
    throw TemplateError("statements are nested too deep", ErrorCode::TooLarge);
  }
  Body statements;
  for (;;) {
    const int line = stream_.current().line;
    if (stream_.is(TokenKind::Data)) {
      auto text = make(StmtKind::Text, line);
      text->text = stream_.next().text;
      statements.push_back(std::move(text));
    } else if (stream_.is(TokenKind::VariableBegin)) {
      stream_.next();
      auto output = make(StmtKind::Output, line);
      output->exprs.push_back(expressions_.tuple());
      stream_.expect(TokenKind::VariableEnd, "'}}'");
      statements.push_back(std::move(output));
    } else if (stream_.is(TokenKind::BlockBegin)) {
      stream_.next();
      const bool ends = std::any_of(until.begin(), until.end(), [this](std::string_view name) {
        return stream_.is_name(name);
      });
      if (ends) {
        break;
      }
      statements.push_back(statement());
    } else {
      if (until.size() > 0) {
        stream_.fail("unexpected end of template, expected '" + std::string(*until.begin()) + "'");
      }
      break;
    }
  }
  --level_;
  return statements;
}

Body Parser::block(std::string_view end) {
  Body statements = body({end});
  stream_.expect_name(end);
  return statements;
}

StmtPtr Parser::statement() {
  const int line = stream_.current().line;
  const std::string name = stream_.expect(TokenKind::Name, "a tag name").text;
  StmtPtr result;
  if (name == "for") {
    result = for_statement();
  } else if (name == "if") {
    result = if_statement();
  } else if (name == "set") {
    result = set_statement();
  } else if (name == "macro") {
    result = macro_statement();
  } else if (name == "call") {
    result = call_statement();
  } else if (name == "filter") {
    result = filter_statement();
  } else if (name == "with") {
    result = with_statement();
  } else if (name == "generation") {
    result = scoped_statement();
  } else if (name == "print") {
    auto output = make(StmtKind::Output, line);
    output->exprs.push_back(expressions_.tuple());
    result = std::move(output);
  } else if (name == "break" || name == "continue") {
    if (loops_ == 0) {
      stream_.fail("'" + name + "' outside of a loop");
    }
    result = make(name == "break" ? StmtKind::Break : StmtKind::Continue, line);
  } else {
    stream_.fail("unknown or unsupported tag '" + name + "'");
  }
  end_tag();
  return result;
}

StmtPtr Parser::for_statement() {
  auto stmt = make(StmtKind::For, stream_.current().line);
  stmt->target = expressions_.target(false);
  stream_.expect_name("in");
  stmt->exprs.push_back(expressions_.tuple(false));
  stmt->exprs.push_back(stream_.skip_name("if") ? expressions_.expression() : nullptr);
  stmt->recursive = stream_.skip_name("recursive");
  end_tag();
  ++loops_;
  stmt->body = body({"endfor", "else"});
  --loops_;
  if (stream_.skip_name("else")) {
    end_tag();
    stmt->else_body = body({"endfor"});
  }
  stream_.expect_name("endfor");
  return stmt;
}

StmtPtr Parser::if_statement() {
  auto stmt = make(StmtKind::If, stream_.current().line);
  for (;;) {
    Branch branch;
    branch.test = expressions_.tuple(false);
    end_tag();
    branch.body = body({"endif", "elif", "else"});
    stmt->branches.push_back(std::move(branch));
    if (!stream_.skip_name("elif")) {
      break;
    }
  }
  if (stream_.skip_name("else")) {
    end_tag();
    stmt->else_body = body({"endif"});
  }
  stream_.expect_name("endif");
  return stmt;
}

StmtPtr Parser::set_statement() {
  auto stmt = make(StmtKind::Set, stream_.current().line);
  stmt->target = expressions_.target(true);
  if (stream_.skip_operator("=")) {
    stmt->exprs.push_back(expressions_.tuple());
    return stmt;
  }
  stmt->kind = StmtKind::SetBlock;
  auto captured = std::make_unique<Expr>();
  captured->kind = ExprKind::Name;
  captured->line = stmt->line;
  captured->text = kCapturedName;
  stmt->exprs.push_back(expressions_.filter_chain(std::move(captured), false));
  end_tag();
  stmt->body = block("endset");
  return stmt;
}

std::vector<Parameter> Parser::parameters() {
  std::vector<Parameter> list;
  stream_.expect_operator("(");
  while (!stream_.is_operator(")")) {
    if (!list.empty()) {
      stream_.expect_operator(",");
    }
    Parameter parameter;
    parameter.name = stream_.expect(TokenKind::Name, "a parameter name").text;
    if (stream_.skip_operator("=")) {
      parameter.default_value = expressions_.expression();
    } else if (!list.empty() && list.back().default_value) {
      stream_.fail("a parameter without a default follows one with a default");
    }
    list.push_back(std::move(parameter));
  }
  stream_.expect_operator(")");
  return list;
}

void Parser::macro_body(Stmt& stmt, std::string_view end) {
  const ExpressionParser::SpecialNames outer = expressions_.special_names;
  const uint32_t loops = loops_;
  expressions_.special_names = {};
  loops_ = 0;
  stmt.body = block(end);
  loops_ = loops;
  stmt.macro.uses_caller = expressions_.special_names.caller;
  stmt.macro.uses_varargs = expressions_.special_names.varargs;
  stmt.macro.uses_kwargs = expressions_.special_names.kwargs;
  expressions_.special_names = outer;
}

StmtPtr Parser::macro_statement() {
  auto stmt = make(StmtKind::Macro, stream_.current().line);
  stmt->macro.name = stream_.expect(TokenKind::Name, "a macro name").text;
  stmt->macro.parameters = parameters();
  end_tag();
  macro_body(*stmt, "endmacro");
  return stmt;
}

StmtPtr Parser::call_statement() {
  auto stmt = make(StmtKind::CallBlock, stream_.current().line);
  stmt->macro.name = "caller";
  if (stream_.is_operator("(")) {
    stmt->macro.parameters = parameters();
  }
  stmt->exprs.push_back(expressions_.expression());
  if (stmt->exprs[0]->kind != ExprKind::Call) {
    stream_.fail("expected a call");
  }
  end_tag();
  macro_body(*stmt, "endcall");
  return stmt;
}

StmtPtr Parser::filter_statement() {
  auto stmt = make(StmtKind::FilterBlock, stream_.current().line);
  auto captured = std::make_unique<Expr>();
  captured->kind = ExprKind::Name;
  captured->line = stmt->line;
  captured->text = kCapturedName;
  stmt->exprs.push_back(expressions_.filter_chain(std::move(captured), true));
  end_tag();
  stmt->body = block("endfilter");
  return stmt;
}

StmtPtr Parser::with_statement() {
  auto stmt = make(StmtKind::With, stream_.current().line);
  while (!stream_.is(TokenKind::BlockEnd)) {
    if (!stmt->targets.empty()) {
      stream_.expect_operator(",");
    }
    const LexToken token = stream_.expect(TokenKind::Name, "a name");
    auto name = std::make_unique<Expr>();
    name->kind = ExprKind::Name;
    name->line = token.line;
    name->text = token.text;
    stmt->targets.push_back(std::move(name));
    stream_.expect_operator("=");
    stmt->exprs.push_back(expressions_.expression());
  }
  end_tag();
  stmt->body = block("endwith");
  return stmt;
}

StmtPtr Parser::scoped_statement() {
  auto stmt = make(StmtKind::Scoped, stream_.current().line);
  end_tag();
  stmt->body = block("endgeneration");
  return stmt;
}

}  // namespace

Body parse_template(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    throw TemplateError("template of " + std::to_string(source.size()) + " bytes, at most " +
                            std::to_string(kMaxSourceBytes) + " are supported",
                        ErrorCode::TooLarge);
  }
  TokenStream stream(tokenize(source));
  return Parser(stream).body({});
}

}  // namespace nibble::text::jinja
