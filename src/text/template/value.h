// Values of the template language, with Python's meaning: None, bool, int, float, str, list, tuple,
// dict, and what Jinja adds (undefined, namespace, loop, macros, bound methods).
// Cheap to copy. Everything but namespaces and generators is immutable once made. shared_ptr is
// used because a value is shared by any number of variables and containers, like in Python.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/template/template_error.h"

namespace nibble::text::jinja {

// Wide enough for every JSON integer (also unsigned 64 bit); arithmetic beyond it is an error.
__extension__ typedef __int128 Int;  // NOLINT(modernize-use-using): __extension__ takes no using

class Value;
class Interpreter;
struct Macro;
struct LoopState;

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

enum class Kind : uint8_t {
  Undefined,
  None,
  Bool,
  Integer,
  Float,
  String,
  Sequence,
  Dict,
  Namespace,
  Function,
  Macro,
  Loop,
};

enum class SequenceKind : uint8_t {
  List,
  Tuple,
  Range,
  DictKeys,
  DictValues,
  DictItems,
  Generator
};

struct Sequence {
  SequenceKind kind = SequenceKind::List;
  std::vector<Value> items;
  size_t consumed = 0;  // Generator: items already taken
  uint32_t depth = 1;   // levels of containers, this one included
};

struct Undefined {
  std::shared_ptr<const std::string> message;  // what an error about it says
};
struct Text {
  std::shared_ptr<const std::string> utf8;
  bool safe = false;  // Markup: joined with + it escapes the other side
};

class Dict {
 public:
  // A later entry with an equal key replaces the value and keeps the place.
  void set(Value key, Value value);
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  uint32_t depth = 1;

 private:
  std::vector<std::pair<Value, Value>> items_;
  std::unordered_map<std::string, size_t> index_;  // string keys, filled beyond a few items
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

// A function or a method bound to its object.
struct Function {
  std::string_view name;
  Value (*call)(Interpreter& interpreter, const Value& self, Arguments& arguments);
  std::shared_ptr<const Value> self;
};

class Value {
 public:
  Value() = default;  // None
  static Value undefined(std::string message);
  static Value of_bool(bool value) { return Value(Storage(value)); }
  static Value of_int(Int value) { return Value(Storage(value)); }
  static Value of_float(double value) { return Value(Storage(value)); }
  static Value of_string(std::string value, bool safe = false);
  // Throws TemplateError when containers nest deeper than kMaxValueDepth.
  static Value of_sequence(SequenceKind kind, std::vector<Value> items);
  static Value of_list(std::vector<Value> items) {
    return of_sequence(SequenceKind::List, std::move(items));
  }
  static Value of_dict(Dict dict);
  static Value of_namespace(std::shared_ptr<Namespace> value) {
    return Value(Storage(std::move(value)));
  }
  static Value of_function(Function function);
  static Value of_macro(std::shared_ptr<const Macro> macro) {
    return Value(Storage(std::move(macro)));
  }
  static Value of_loop(std::shared_ptr<LoopState> loop);

  Kind kind() const;
  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<std::monostate>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<Int>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_string() const { return std::holds_alternative<Text>(data_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_sequence(SequenceKind kind) const;
  bool is_dict() const { return kind() == Kind::Dict; }

  // Each for its own kind only.
  bool as_bool() const { return std::get<bool>(data_); }
  Int as_int() const { return is_bool() ? Int{as_bool()} : std::get<Int>(data_); }  // also bool
  double as_float() const;                                                          // any number
  const std::string& str() const { return *std::get<Text>(data_).utf8; }
  bool is_safe() const { return is_string() && std::get<Text>(data_).safe; }
  const std::string& undefined_message() const { return *std::get<Undefined>(data_).message; }
  Sequence& sequence() const { return *std::get<std::shared_ptr<Sequence>>(data_); }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Namespace& name_space() const { return *std::get<std::shared_ptr<Namespace>>(data_); }
  const Function& function() const { return *std::get<std::shared_ptr<const Function>>(data_); }
  const Macro& macro() const { return *std::get<std::shared_ptr<const Macro>>(data_); }
  LoopState& loop() const { return *std::get<std::shared_ptr<LoopState>>(data_); }

  uint32_t depth() const;
  bool same_object(const Value& other) const;  // Python's `is`

 private:
  using Storage = std::variant<std::monostate,
                               Undefined,
                               bool,
                               Int,
                               double,
                               Text,
                               std::shared_ptr<Sequence>,
                               std::shared_ptr<const Dict>,
                               std::shared_ptr<Namespace>,
                               std::shared_ptr<const Function>,
                               std::shared_ptr<const Macro>,
                               std::shared_ptr<LoopState>>;
  explicit Value(Storage data) : data_(std::move(data)) {}

  Storage data_;
};

// Python's bool(value).
bool is_true(const Value& value);
// Python's type(value).__name__.
std::string_view type_name(const Value& value);
bool equal(const Value& a, const Value& b);
// Throws unless Python could use the value as a dict key.
void require_hashable(const Value& value);
// Throws the error of an undefined value; does nothing for others.
void require_defined(const Value& value);

}  // namespace nibble::text::jinja
