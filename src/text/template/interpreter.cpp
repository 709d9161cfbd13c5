#include "text/template/interpreter.h"

#include <algorithm>

#include "text/template/access.h"
#include "text/template/format.h"
#include "text/template/library.h"

namespace nibble::text::jinja {

// One level of evaluation; templates can recurse through macros and loops.
class Interpreter::Depth {
 public:
  explicit Depth(Interpreter& interpreter) : interpreter_(interpreter) {
    if (++interpreter_.depth_ > kMaxCallDepth) {
      --interpreter_.depth_;
      throw TemplateError("the template recurses too deep", ErrorCode::TooLarge);
    }
    interpreter_.budget_.step();
  }
  ~Depth() { --interpreter_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  Interpreter& interpreter_;
};

Interpreter::Interpreter(uint64_t input_bytes, int64_t unix_seconds)
    : budget_(input_bytes), unix_seconds_(unix_seconds) {}

Interpreter::~Interpreter() {
  for (const std::shared_ptr<Namespace>& entry : namespaces_) {
    entry->attributes.clear();
  }
}

std::string Interpreter::render(const Body& body,
                                std::vector<std::pair<std::string_view, Value>> context) {
  Scope& given = enter(nullptr);
  given.variables = std::move(context);
  Scope& root = enter(&given);
  run_body(body, root);
  return std::move(output_);
}

// ---- scopes ----

Scope& Interpreter::enter(Scope* parent) {
  if (free_scopes_.empty()) {
    budget_.take_bytes(sizeof(Scope) * 2);
    free_scopes_.push_back(&scopes_.emplace_back());
  }
  Scope& scope = *free_scopes_.back();
  free_scopes_.pop_back();
  scope.parent = parent;
  return scope;
}

void Interpreter::leave(Scope& scope) {
  if (!scope.captured) {
    scope.variables.clear();
    free_scopes_.push_back(&scope);
  }
}

void Interpreter::set(Scope& scope, std::string_view name, Value value) {
  for (auto& [known, old] : scope.variables) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  scope.variables.emplace_back(name, std::move(value));
}

Value Interpreter::look_up(std::string_view name, Scope& scope) {
  for (Scope* at = &scope; at != nullptr; at = at->parent) {
    for (const auto& [known, value] : at->variables) {
      if (known == name) {
        return value;
      }
    }
  }
  if (const auto function = find_global(name)) {
    return Value::of_function(*function);
  }
  return Value::undefined("'" + std::string(name) + "' is undefined");
}

void Interpreter::assign(const Expr& target, Value value, Scope& scope) {
  if (target.kind == ExprKind::Name) {
    set(scope, target.text, std::move(value));
    return;
  }
  if (target.kind == ExprKind::Attribute) {
    const Value object = look_up(target.children[0]->text, scope);
    if (object.kind() != Kind::Namespace) {
      throw TemplateError("cannot assign attribute on non-namespace object");
    }
    auto& attributes = object.name_space().attributes;
    for (auto& [name, old] : attributes) {
      if (name == target.text) {
        old = std::move(value);
        return;
      }
    }
    attributes.emplace_back(target.text, std::move(value));
    return;
  }
  const std::vector<Value> parts = iterate(value, budget_);
  if (parts.size() != target.children.size()) {
    throw TemplateError(parts.size() < target.children.size()
                            ? "not enough values to unpack (expected " +
                                  std::to_string(target.children.size()) + ", got " +
                                  std::to_string(parts.size()) + ")"
                            : "too many values to unpack (expected " +
                                  std::to_string(target.children.size()) + ")");
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    assign(*target.children[i], parts[i], scope);
  }
}

// ---- statements ----

Interpreter::Flow Interpreter::run_body(const Body& body, Scope& scope) {
  for (const StmtPtr& stmt : body) {
    const Flow flow = run(*stmt, scope);
    if (flow != Flow::Normal) {
      return flow;
    }
  }
  return Flow::Normal;
}

Interpreter::Flow Interpreter::run(const Stmt& stmt, Scope& scope) {
  const Depth depth(*this);
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::Text:
      budget_.take_bytes(stmt.text.size());
      output_ += stmt.text;
      return Flow::Normal;
    case StmtKind::Output: {
      const Value value = evaluate(*stmt.exprs[0], scope);
      append_str(value, output_, budget_);
      return Flow::Normal;
    }
    case StmtKind::If:
      return run_if(stmt, scope);
    case StmtKind::For:
      run_for(stmt, scope, evaluate(*stmt.exprs[0], scope), 0);
      return Flow::Normal;
    case StmtKind::Set:
      assign(*stmt.target, evaluate(*stmt.exprs[0], scope), scope);
      return Flow::Normal;
    case StmtKind::SetBlock:
      run_set_block(stmt, scope);
      return Flow::Normal;
    case StmtKind::Macro:
      set(scope, stmt.macro.name, make_macro(stmt, scope));
      return Flow::Normal;
    case StmtKind::CallBlock:
      run_call_block(stmt, scope);
      return Flow::Normal;
    case StmtKind::FilterBlock:
      run_filter_block(stmt, scope);
      return Flow::Normal;
    case StmtKind::With:
      return run_with(stmt, scope);
    case StmtKind::Scoped: {
      Scope& inner = enter(&scope);
      const Flow flow = run_body(stmt.body, inner);
      leave(inner);
      return flow;
    }
    case StmtKind::Break:
      return Flow::Break;
    case StmtKind::Continue:
      return Flow::Continue;
  }
  return Flow::Normal;
}

Interpreter::Flow Interpreter::run_if(const Stmt& stmt, Scope& scope) {
  for (const Branch& branch : stmt.branches) {
    if (is_true(evaluate(*branch.test, scope))) {
      return run_body(branch.body, scope);
    }
  }
  return run_body(stmt.else_body, scope);
}

void Interpreter::run_for(const Stmt& stmt, Scope& scope, const Value& iterable, uint32_t depth) {
  auto loop = std::make_shared<LoopState>();
  loop->items = iterate(iterable, budget_);
  loop->depth = depth;
  loop->recursive = stmt.recursive ? &stmt : nullptr;
  loop->scope = &scope;
  if (stmt.exprs[1]) {
    std::vector<Value> kept;
    for (Value& item : loop->items) {
      Scope& inner = enter(&scope);
      assign(*stmt.target, item, inner);
      if (is_true(evaluate(*stmt.exprs[1], inner))) {
        kept.push_back(std::move(item));
      }
      leave(inner);
    }
    loop->items = std::move(kept);
  }
  for (const Value& item : loop->items) {
    loop->value_depth = std::max(loop->value_depth, item.depth() + 1);
  }
  const Value loop_value = Value::of_loop(loop);
  for (; loop->index < loop->items.size(); ++loop->index) {
    budget_.step();
    Scope& inner = enter(&scope);
    set(inner, "loop", loop_value);
    assign(*stmt.target, loop->items[loop->index], inner);
    const Flow flow = run_body(stmt.body, inner);
    leave(inner);
    if (flow == Flow::Break) {
      break;
    }
  }
  if (loop->items.empty() && !stmt.else_body.empty()) {
    Scope& inner = enter(&scope);
    run_body(stmt.else_body, inner);
    leave(inner);
  }
}

std::string Interpreter::capture(const Body& body, Scope& scope) {
  std::string outer = std::move(output_);
  output_.clear();
  Scope& inner = enter(&scope);
  run_body(body, inner);
  leave(inner);
  std::swap(outer, output_);
  return outer;
}

void Interpreter::run_set_block(const Stmt& stmt, Scope& scope) {
  Scope& inner = enter(&scope);
  set(inner, kCapturedName, Value::of_string(capture(stmt.body, scope)));
  assign(*stmt.target, evaluate(*stmt.exprs[0], inner), scope);
  leave(inner);
}

void Interpreter::run_filter_block(const Stmt& stmt, Scope& scope) {
  Scope& inner = enter(&scope);
  set(inner, kCapturedName, Value::of_string(capture(stmt.body, scope)));
  const Value filtered = evaluate(*stmt.exprs[0], inner);
  if (!filtered.is_string()) {
    throw TemplateError("a filter block must give a str, not " + std::string(type_name(filtered)));
  }
  append_str(filtered, output_, budget_);
  leave(inner);
}

void Interpreter::run_call_block(const Stmt& stmt, Scope& scope) {
  const Value caller = make_macro(stmt, scope);
  append_str(evaluate_call(*stmt.exprs[0], scope, &caller), output_, budget_);
}

Interpreter::Flow Interpreter::run_with(const Stmt& stmt, Scope& scope) {
  Scope& inner = enter(&scope);
  for (size_t i = 0; i < stmt.targets.size(); ++i) {
    assign(*stmt.targets[i], evaluate(*stmt.exprs[i], scope), inner);
  }
  const Flow flow = run_body(stmt.body, inner);
  leave(inner);
  return flow;
}

// ---- calls ----

Value Interpreter::make_macro(const Stmt& stmt, Scope& scope) {
  for (Scope* at = &scope; at != nullptr; at = at->parent) {
    at->captured = true;
  }
  auto macro = std::make_shared<Macro>();
  macro->name = stmt.macro.name;
  macro->uses_caller = stmt.macro.uses_caller;
  macro->uses_varargs = stmt.macro.uses_varargs;
  macro->uses_kwargs = stmt.macro.uses_kwargs;
  macro->body = &stmt.body;
  macro->parameter_list = &stmt.macro.parameters;
  macro->scope = &scope;
  return Value::of_macro(std::move(macro));
}

void Interpreter::bind_parameters(const Macro& macro, Arguments& arguments, Scope& scope) {
  const std::vector<Parameter>& parameters = *macro.parameter_list;
  const size_t given = std::min(arguments.positional.size(), parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    const auto named =
        std::find_if(arguments.named.begin(), arguments.named.end(), [&](const auto& argument) {
          return argument.first == parameter.name;
        });
    if (i < given) {
      set(scope, parameter.name, std::move(arguments.positional[i]));
      continue;  // a second value by name stays and is reported as unexpected
    }
    if (named != arguments.named.end()) {
      set(scope, parameter.name, std::move(named->second));
      arguments.named.erase(named);
    } else if (parameter.default_value) {
      set(scope, parameter.name, evaluate(*parameter.default_value, scope));
    } else {
      set(scope,
          parameter.name,
          Value::undefined("parameter '" + parameter.name + "' was not provided"));
    }
  }
  if (macro.uses_caller) {
    const auto caller =
        std::find_if(arguments.named.begin(), arguments.named.end(), [](const auto& argument) {
          return argument.first == "caller";
        });
    Value value = Value::undefined("No caller defined");
    if (caller != arguments.named.end()) {
      value = std::move(caller->second);
      arguments.named.erase(caller);
    }
    set(scope, "caller", std::move(value));
  }
  if (macro.uses_kwargs) {
    Dict rest;
    for (auto& [name, value] : arguments.named) {
      rest.set(Value::of_string(name), std::move(value));
    }
    set(scope, "kwargs", Value::of_dict(std::move(rest)));
  } else if (!arguments.named.empty()) {
    throw TemplateError("macro '" + macro.name + "' takes no keyword argument '" +
                        arguments.named.front().first + "'");
  }
  std::vector<Value> rest(
      std::make_move_iterator(arguments.positional.begin() + static_cast<ptrdiff_t>(given)),
      std::make_move_iterator(arguments.positional.end()));
  if (macro.uses_varargs) {
    set(scope, "varargs", Value::of_sequence(SequenceKind::Tuple, std::move(rest)));
  } else if (!rest.empty()) {
    throw TemplateError("macro '" + macro.name + "' takes not more than " +
                        std::to_string(parameters.size()) + " argument(s)");
  }
}

Value Interpreter::call_macro(const Macro& macro, Arguments& arguments) {
  const Depth depth(*this);
  const int line = line_;
  Scope& scope = enter(macro.scope);
  bind_parameters(macro, arguments, scope);
  std::string outer = std::move(output_);
  output_.clear();
  run_body(*macro.body, scope);
  std::swap(outer, output_);
  leave(scope);
  line_ = line;
  return Value::of_string(std::move(outer));
}

Value Interpreter::call_loop(LoopState& loop, Arguments& arguments) {
  if (loop.recursive == nullptr) {
    throw TemplateError("The loop must have the 'recursive' marker to be called recursively.");
  }
  if (arguments.positional.size() != 1) {
    throw TemplateError("loop() takes one argument");
  }
  const Depth depth(*this);
  std::string outer = std::move(output_);
  output_.clear();
  run_for(*loop.recursive, *loop.scope, arguments.positional[0], loop.depth + 1);
  std::swap(outer, output_);
  return Value::of_string(std::move(outer));
}

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  require_defined(callee);
  switch (callee.kind()) {
    case Kind::Function: {
      const Function& function = callee.function();
      return function.call(*this, function.self ? *function.self : Value(), arguments);
    }
    case Kind::Macro:
      return call_macro(callee.macro(), arguments);
    case Kind::Loop:
      return call_loop(callee.loop(), arguments);
    default:
      throw TemplateError("'" + std::string(type_name(callee)) + "' object is not callable");
  }
}

Value Interpreter::make_namespace(Namespace attributes) {
  auto made = std::make_shared<Namespace>(std::move(attributes));
  budget_.take_bytes(kValueBytes * 4);
  namespaces_.push_back(made);
  return Value::of_namespace(std::move(made));
}

Value Interpreter::string(std::string text, bool safe) {
  budget_.take_bytes(text.size() + kValueBytes);
  return Value::of_string(std::move(text), safe);
}

std::string Interpreter::to_text(const Value& value) { return to_str(value, budget_); }

// ---- expressions ----

Value Interpreter::evaluate(const Expr& expr, Scope& scope) {
  switch (expr.kind) {
    case ExprKind::Constant:
      return expr.constant;
    case ExprKind::Name:
      budget_.step();
      return look_up(expr.text, scope);
    default:
      break;
  }
  const Depth depth(*this);
  switch (expr.kind) {
    case ExprKind::List:
    case ExprKind::Tuple:
    case ExprKind::Dict:
      return evaluate_collection(expr, scope);
    case ExprKind::Not:
      return Value::of_bool(!is_true(evaluate(*expr.children[0], scope)));
    case ExprKind::Negate:
      return negate(evaluate(*expr.children[0], scope));
    case ExprKind::Positive:
      return positive(evaluate(*expr.children[0], scope));
    case ExprKind::Binary: {
      const Value left = evaluate(*expr.children[0], scope);
      return binary(expr.operators[0], left, evaluate(*expr.children[1], scope), budget_);
    }
    case ExprKind::Compare:
      return evaluate_compare(expr, scope);
    case ExprKind::And:
    case ExprKind::Or:
    case ExprKind::Condition:
      return evaluate_short_circuit(expr, scope);
    case ExprKind::Concat:
      return evaluate_concat(expr, scope);
    case ExprKind::Attribute:
      return get_attribute(evaluate(*expr.children[0], scope), expr.text, budget_);
    case ExprKind::Item: {
      const Value object = evaluate(*expr.children[0], scope);
      return get_item(object, evaluate(*expr.children[1], scope), budget_);
    }
    case ExprKind::Slice:
      return evaluate_slice(expr, scope);
    case ExprKind::Call:
      return evaluate_call(expr, scope, nullptr);
    case ExprKind::Filter:
      return evaluate_filter(expr, scope);
    case ExprKind::Test:
      return evaluate_test(expr, scope);
    default:
      return Value();
  }
}

Value Interpreter::evaluate_short_circuit(const Expr& expr, Scope& scope) {
  if (expr.kind == ExprKind::Condition) {
    if (is_true(evaluate(*expr.children[0], scope))) {
      return evaluate(*expr.children[1], scope);
    }
    if (expr.children[2]) {
      return evaluate(*expr.children[2], scope);
    }
    return Value::undefined("the inline if-expression on line " + std::to_string(expr.line) +
                            " evaluated to false and no else section was defined.");
  }
  Value left = evaluate(*expr.children[0], scope);
  return is_true(left) == (expr.kind == ExprKind::Or) ? left : evaluate(*expr.children[1], scope);
}

Value Interpreter::evaluate_collection(const Expr& expr, Scope& scope) {
  budget_.take_bytes(expr.children.size() * sizeof(Value) + kValueBytes);
  if (expr.kind == ExprKind::Dict) {
    Dict dict;
    for (size_t i = 0; i < expr.children.size(); i += 2) {
      Value key = evaluate(*expr.children[i], scope);
      dict.set(std::move(key), evaluate(*expr.children[i + 1], scope));
    }
    return Value::of_dict(std::move(dict));
  }
  std::vector<Value> items;
  items.reserve(expr.children.size());
  for (const ExprPtr& child : expr.children) {
    items.push_back(evaluate(*child, scope));
  }
  return Value::of_sequence(expr.kind == ExprKind::List ? SequenceKind::List : SequenceKind::Tuple,
                            std::move(items));
}

Value Interpreter::evaluate_compare(const Expr& expr, Scope& scope) {
  Value left = evaluate(*expr.children[0], scope);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    Value right = evaluate(*expr.children[i + 1], scope);
    if (!compare(expr.operators[i], left, right, budget_)) {
      return Value::of_bool(false);
    }
    left = std::move(right);
  }
  return Value::of_bool(true);
}

Value Interpreter::evaluate_concat(const Expr& expr, Scope& scope) {
  std::string text;
  budget_.take_bytes(kValueBytes);
  for (const ExprPtr& child : expr.children) {
    append_str(evaluate(*child, scope), text, budget_);
  }
  return Value::of_string(std::move(text));
}

Value Interpreter::evaluate_slice(const Expr& expr, Scope& scope) {
  const Value object = evaluate(*expr.children[0], scope);
  Value parts[3];
  for (size_t i = 0; i < 3; ++i) {
    if (expr.children[i + 1]) {
      parts[i] = evaluate(*expr.children[i + 1], scope);
    }
  }
  return slice(object, parts[0], parts[1], parts[2], budget_);
}

Arguments Interpreter::evaluate_arguments(const Expr& expr, Scope& scope) {
  Arguments arguments;
  for (size_t i = 1; i < expr.children.size(); ++i) {
    arguments.positional.push_back(evaluate(*expr.children[i], scope));
  }
  if (expr.spread_list) {
    for (Value& value : iterate(evaluate(*expr.spread_list, scope), budget_)) {
      arguments.positional.push_back(std::move(value));
    }
  }
  for (const auto& [name, value] : expr.named) {
    arguments.named.emplace_back(name, evaluate(*value, scope));
  }
  if (expr.spread_dict) {
    const Value spread = evaluate(*expr.spread_dict, scope);
    if (!spread.is_dict()) {
      throw TemplateError("argument after ** must be a mapping, not " +
                          std::string(type_name(spread)));
    }
    for (const auto& [key, value] : spread.dict().items()) {
      if (!key.is_string()) {
        throw TemplateError("keywords must be strings");
      }
      arguments.named.emplace_back(key.str(), value);
    }
  }
  return arguments;
}

Value Interpreter::evaluate_call(const Expr& expr, Scope& scope, const Value* caller) {
  const Value callee = evaluate(*expr.children[0], scope);
  Arguments arguments = evaluate_arguments(expr, scope);
  if (caller != nullptr) {
    arguments.named.emplace_back("caller", *caller);
  }
  return call(callee, arguments);
}

Value Interpreter::evaluate_filter(const Expr& expr, Scope& scope) {
  const Value input = evaluate(*expr.children[0], scope);
  Arguments arguments = evaluate_arguments(expr, scope);
  return apply_filter(*this, expr.text, input, arguments);
}

Value Interpreter::evaluate_test(const Expr& expr, Scope& scope) {
  const Value input = evaluate(*expr.children[0], scope);
  Arguments arguments = evaluate_arguments(expr, scope);
  return Value::of_bool(apply_test(*this, expr.text, input, arguments));
}

}  // namespace nibble::text::jinja
