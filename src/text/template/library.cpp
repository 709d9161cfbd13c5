#include "text/template/library.h"

#include <algorithm>

namespace nibble::text::jinja {
namespace {

const Filter* find_filter(std::string_view name) {
  for (const std::span<const Filter> table :
       {text_filters(), sequence_filters(), select_filters()}) {
    for (const Filter& filter : table) {
      if (filter.name == name) {
        return &filter;
      }
    }
  }
  return nullptr;
}

const Test* find_test(std::string_view name) {
  for (const Test& test : all_tests()) {
    if (test.name == name) {
      return &test;
    }
  }
  return nullptr;
}

}  // namespace

bool has_filter(std::string_view name) { return find_filter(name) != nullptr; }

bool has_test(std::string_view name) { return find_test(name) != nullptr; }

Value apply_filter(Interpreter& interpreter,
                   std::string_view name,
                   const Value& input,
                   Arguments& arguments) {
  const Filter* filter = find_filter(name);
  if (filter == nullptr) {
    throw TemplateError("no filter named '" + std::string(name) + "'", ErrorCode::Unsupported);
  }
  return filter->apply(interpreter, input, arguments);
}

bool apply_test(Interpreter& interpreter,
                std::string_view name,
                const Value& input,
                Arguments& arguments) {
  const Test* test = find_test(name);
  if (test == nullptr) {
    throw TemplateError("no test named '" + std::string(name) + "'", ErrorCode::Unsupported);
  }
  return test->apply(interpreter, input, arguments);
}

std::vector<const Value*> bind(std::string_view function,
                               const Arguments& arguments,
                               std::initializer_list<std::string_view> names) {
  std::vector<const Value*> bound(names.size(), nullptr);
  if (arguments.positional.size() > names.size()) {
    throw TemplateError(std::string(function) + "() takes at most " + std::to_string(names.size()) +
                        " argument(s), " + std::to_string(arguments.positional.size()) + " given");
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    bound[i] = &arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.named) {
    const auto* found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      throw TemplateError(std::string(function) + "() got an unexpected keyword argument '" + name +
                          "'");
    }
    const Value*& place = bound[static_cast<size_t>(found - names.begin())];
    if (place != nullptr) {
      throw TemplateError(std::string(function) + "() got multiple values for argument '" + name +
                          "'");
    }
    place = &value;
  }
  return bound;
}

const Value& required(std::string_view function,
                      const std::vector<const Value*>& bound,
                      size_t index) {
  if (bound[index] == nullptr) {
    throw TemplateError(std::string(function) + "() is missing an argument");
  }
  return *bound[index];
}

Int integer_argument(const Value* value, Int fallback) {
  if (value == nullptr || value->is_none()) {
    return fallback;
  }
  require_defined(*value);
  if (!value->is_int() && !value->is_bool()) {
    throw TemplateError("'" + std::string(type_name(*value)) +
                        "' object cannot be interpreted as an integer");
  }
  return std::clamp<Int>(value->as_int(), -(Int{1} << 62), Int{1} << 62);
}

const std::string& string_argument(std::string_view function, const Value& value) {
  require_defined(value);
  if (!value.is_string()) {
    throw TemplateError(std::string(function) + "(): expected str, found " +
                        std::string(type_name(value)));
  }
  return value.str();
}

}  // namespace nibble::text::jinja
