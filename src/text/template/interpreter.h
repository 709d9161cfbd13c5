// Runs a parsed template: one object a rendering, on one thread. Variables live in scopes that the
// interpreter owns; a macro keeps a pointer to the scope it was defined in (lexical scoping, as in
// Jinja). Work, memory and depth are limited (template_error.h).
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/template/ast.h"
#include "text/template/value.h"

namespace nibble::text::jinja {

struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> variables;  // names live in the parse tree
  bool captured = false;                                      // a macro refers to it
};

struct LoopState {
  std::vector<Value> items;
  size_t index = 0;
  uint32_t depth = 0;
  const Stmt* recursive = nullptr;  // the statement, if {% for ... recursive %}
  Scope* scope = nullptr;           // around the loop
  std::string changed;              // repr of what loop.changed was given last
  uint32_t value_depth = 1;         // levels of containers, this one included
};

class Interpreter {
 public:
  Interpreter(uint64_t input_bytes, int64_t unix_seconds);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // `context`: the variables a template starts with; the names must outlive the call.
  std::string render(const Body& body, std::vector<std::pair<std::string_view, Value>> context);
  int line() const { return line_; }  // of the statement that ran last

  // For filters, tests, methods and functions.
  Budget& budget() { return budget_; }
  int64_t unix_seconds() const { return unix_seconds_; }  // "now"
  Value call(const Value& callee, Arguments& arguments);
  Value make_namespace(Namespace attributes);
  Value string(std::string text, bool safe = false);  // charges the budget
  std::string str(const Value& value) { return to_text(value); }

 private:
  enum class Flow : uint8_t { Normal, Break, Continue };
  class Depth;

  Flow run_body(const Body& body, Scope& scope);
  Flow run(const Stmt& stmt, Scope& scope);
  Flow run_if(const Stmt& stmt, Scope& scope);
  void run_for(const Stmt& stmt, Scope& scope, const Value& iterable, uint32_t depth);
  void run_set_block(const Stmt& stmt, Scope& scope);
  void run_filter_block(const Stmt& stmt, Scope& scope);
  void run_call_block(const Stmt& stmt, Scope& scope);
  Flow run_with(const Stmt& stmt, Scope& scope);
  Value make_macro(const Stmt& stmt, Scope& scope);
  Value call_macro(const Macro& macro, Arguments& arguments);
  void bind_parameters(const Macro& macro, Arguments& arguments, Scope& scope);
  Value call_loop(LoopState& loop, Arguments& arguments);
  // Runs `body` in a new scope inside `scope` and returns what it printed.
  std::string capture(const Body& body, Scope& scope);

  Value evaluate(const Expr& expr, Scope& scope);
  Value evaluate_short_circuit(const Expr& expr, Scope& scope);
  Value evaluate_collection(const Expr& expr, Scope& scope);
  Value evaluate_compare(const Expr& expr, Scope& scope);
  Value evaluate_concat(const Expr& expr, Scope& scope);
  Value evaluate_slice(const Expr& expr, Scope& scope);
  Value evaluate_call(const Expr& expr, Scope& scope, const Value* caller);
  Value evaluate_filter(const Expr& expr, Scope& scope);
  Value evaluate_test(const Expr& expr, Scope& scope);
  Arguments evaluate_arguments(const Expr& expr, Scope& scope);
  Value look_up(std::string_view name, Scope& scope);
  void assign(const Expr& target, Value value, Scope& scope);
  static void set(Scope& scope, std::string_view name, Value value);

  Scope& enter(Scope* parent);
  void leave(Scope& scope);
  std::string to_text(const Value& value);

  Budget budget_;
  int64_t unix_seconds_;
  std::string output_;
  int line_ = 0;
  uint32_t depth_ = 0;
  std::deque<Scope> scopes_;
  std::vector<Scope*> free_scopes_;
  // All namespaces made, so that the cycles they can form are cut at the end.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

}  // namespace nibble::text::jinja
