// The parse tree of a template. Immutable after parsing and shared between renderings.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/template/value.h"

namespace nibble::text::jinja {

struct Scope;  // interpreter.h
struct Expr;
using ExprPtr = std::unique_ptr<const Expr>;

enum class ExprKind : uint8_t {
  Constant,   // constant
  Name,       // text
  List,       // children
  Tuple,      // children
  Dict,       // children: key, value, key, value, ...
  Not,        // children[0]
  Negate,     // children[0]
  Positive,   // children[0]
  Binary,     // operators[0] on children[0], children[1]
  Compare,    // children[0] operators[0] children[1] operators[1] children[2] ...
  And,        // children[0], children[1]
  Or,         // children[0], children[1]
  Concat,     // all children as text
  Condition,  // children: test, then, else or null
  Attribute,  // children[0].text
  Item,       // children[0][children[1]]
  Slice,      // children[0][children[1]:children[2]:children[3]], each but the first may be null
  Call,       // children[0] called with the rest, named, spread
  Filter,     // children[0] | text(rest, named)
  Test,       // children[0] is text(rest, named)
};

enum class Operator : uint8_t {
  Add,
  Subtract,
  Multiply,
  Divide,
  FloorDivide,
  Modulo,
  Power,
  Equal,
  NotEqual,
  Less,
  LessEqual,
  Greater,
  GreaterEqual,
  In,
  NotIn,
};

struct Expr {
  ExprKind kind = ExprKind::Constant;
  int line = 0;
  uint32_t depth = 1;  // of the tree from here down
  std::string text;
  Value constant;
  std::vector<ExprPtr> children;
  std::vector<Operator> operators;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr spread_list;  // *x
  ExprPtr spread_dict;  // **x
};

struct Stmt;
using StmtPtr = std::unique_ptr<const Stmt>;
using Body = std::vector<StmtPtr>;

struct Parameter {
  std::string name;
  ExprPtr default_value;  // null: none
};

struct Macro {
  std::string name;
  std::vector<Parameter> parameters;
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  const Body* body = nullptr;
  const std::vector<Parameter>* parameter_list = nullptr;
  Scope* scope = nullptr;  // set when the macro statement runs
};

enum class StmtKind : uint8_t {
  Text,         // text
  Output,       // exprs
  If,           // branches, else_body
  For,          // target, exprs[0] (iterable), exprs[1] (filter or null), body, else_body
  Set,          // target, exprs[0]
  SetBlock,     // target, body, exprs: filters around the captured text (see FilterBlock)
  Macro,        // macro, body
  CallBlock,    // macro (of the caller), body, exprs[0]: the call
  FilterBlock,  // body, exprs[0]: a filter expression whose innermost input is the captured text
  With,         // targets, exprs, body
  Scoped,       // body in a scope of its own: {% generation %}
  Break,
  Continue,
};

struct Branch {
  ExprPtr test;
  Body body;
};

struct Stmt {
  StmtKind kind = StmtKind::Text;
  int line = 0;
  std::string text;
  ExprPtr target;  // Name, Tuple of targets, or Attribute of a namespace
  std::vector<ExprPtr> targets;
  std::vector<ExprPtr> exprs;
  std::vector<Branch> branches;
  Body body;
  Body else_body;
  bool recursive = false;  // For
  Macro macro;             // Macro, CallBlock: everything but the scope
};

// Name of the variable that holds the captured text while a filter block's expression runs. It is
// not an identifier, so no template can name it.
inline constexpr char kCapturedName[] = "<captured>";

}  // namespace nibble::text::jinja
