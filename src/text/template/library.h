// The filters, tests, methods and global functions, found by name. Tables are constant; nothing
// registers itself.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

#include "text/template/interpreter.h"
#include "text/template/value.h"

namespace nibble::text::jinja {

using FilterFunction = Value (*)(Interpreter& interpreter,
                                 const Value& input,
                                 Arguments& arguments);
using TestFunction = bool (*)(Interpreter& interpreter, const Value& input, Arguments& arguments);

struct Filter {
  std::string_view name;
  FilterFunction apply;
};
struct FunctionEntry {
  std::string_view name;
  Value (*call)(Interpreter& interpreter, const Value& self, Arguments& arguments);
};
struct Test {
  std::string_view name;
  TestFunction apply;
};

// filters_text.cpp, filters_sequence.cpp, filters_select.cpp, tests.cpp
std::span<const Filter> text_filters();
std::span<const Filter> sequence_filters();
std::span<const Filter> select_filters();
std::span<const Test> all_tests();

// Throw TemplateError when there is no such filter or test.
Value apply_filter(Interpreter& interpreter,
                   std::string_view name,
                   const Value& input,
                   Arguments& arguments);
bool apply_test(Interpreter& interpreter,
                std::string_view name,
                const Value& input,
                Arguments& arguments);
bool has_filter(std::string_view name);
bool has_test(std::string_view name);

std::optional<Function> find_global(std::string_view name);
// string_methods.cpp, container_methods.cpp; nullopt when the type has no such method.
std::optional<Function> find_string_method(std::string_view name);
std::optional<Function> find_container_method(const Value& object, std::string_view name);

// The arguments of a call by Python's rules, in the order of `names`: positional, then named.
// Entries that were not given are null. Throws for too many or unknown ones.
std::vector<const Value*> bind(std::string_view function,
                               const Arguments& arguments,
                               std::initializer_list<std::string_view> names);
const Value& required(std::string_view function,
                      const std::vector<const Value*>& bound,
                      size_t index);
// An integer argument; `fallback` when it was not given or is None.
Int integer_argument(const Value* value, Int fallback);
// A string argument; throws for other types.
const std::string& string_argument(std::string_view function, const Value& value);

}  // namespace nibble::text::jinja
