// Filters that apply another filter or a test to each item: map, select, reject and their attribute
// forms. Like Jinja's they give a generator (always true, no length, one pass), and nothing at all
// for a false input.
#include "text/template/attribute_path.h"
#include "text/template/library.h"

namespace nibble::text::jinja {
namespace {

std::vector<Value> items_of(Interpreter& interpreter, const Value& input) {
  return is_true(input) ? iterate(input, interpreter.budget()) : std::vector<Value>();
}

// Takes the first positional argument out.
Value take_first(std::string_view filter, Arguments& arguments) {
  if (arguments.positional.empty()) {
    throw TemplateError(std::string(filter) + "() is missing an argument");
  }
  Value taken = std::move(arguments.positional.front());
  arguments.positional.erase(arguments.positional.begin());
  return taken;
}

Value map_attribute(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound = bind("map", arguments, {"attribute", "default"});
  const AttributePath path(bound[0], interpreter);
  std::vector<Value> items;
  for (const Value& item : items_of(interpreter, input)) {
    Value found = path.of(item);
    if (found.is_undefined() && bound[1] != nullptr && !bound[1]->is_none()) {
      found = *bound[1];
    }
    items.push_back(std::move(found));
  }
  return Value::of_sequence(SequenceKind::Generator, std::move(items));
}

Value map(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  if (arguments.positional.empty()) {
    return map_attribute(interpreter, input, arguments);
  }
  const Value name = take_first("map", arguments);
  std::vector<Value> items;
  for (const Value& item : items_of(interpreter, input)) {
    Arguments copy = arguments;
    items.push_back(apply_filter(interpreter, string_argument("map", name), item, copy));
  }
  return Value::of_sequence(SequenceKind::Generator, std::move(items));
}

template <bool by_attribute, bool keep>
Value filtered(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  Value attribute;
  if (by_attribute) {
    attribute = take_first("selectattr", arguments);
  }
  const AttributePath path(&attribute, interpreter);
  const bool has_name = !arguments.positional.empty();
  const Value name = has_name ? take_first("select", arguments) : Value();
  std::vector<Value> items;
  for (Value& item : items_of(interpreter, input)) {
    const Value tested = by_attribute ? path.of(item) : item;
    Arguments copy = arguments;
    const bool holds = has_name
                           ? apply_test(interpreter, string_argument("select", name), tested, copy)
                           : is_true(tested);
    if (holds == keep) {
      items.push_back(std::move(item));
    }
  }
  return Value::of_sequence(SequenceKind::Generator, std::move(items));
}

constexpr Filter kFilters[] = {
    {"map", map},
    {"reject", filtered<false, false>},
    {"rejectattr", filtered<true, false>},
    {"select", filtered<false, true>},
    {"selectattr", filtered<true, true>},
};

}  // namespace

std::span<const Filter> select_filters() { return kFilters; }

}  // namespace nibble::text::jinja
