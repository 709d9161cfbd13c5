// What Python and Jinja do with values: operators, comparison, subscripts, attributes, iteration.
// All throw TemplateError with Python's words.
#pragma once

#include <string_view>
#include <vector>

#include "text/template/ast.h"
#include "text/template/value.h"

namespace nibble::text::jinja {

Value negate(const Value& value);
Value positive(const Value& value);
Value binary(Operator op, const Value& left, const Value& right, Budget& budget);
// left op right for the comparisons and (not) in.
bool compare(Operator op, const Value& left, const Value& right, Budget& budget);
bool contains(const Value& container, const Value& item, Budget& budget);
// Three-way order of numbers, strings, lists and tuples; throws for what Python cannot order.
int order(const Value& left, const Value& right, std::string_view op, Budget& budget);

// object.name: a method or attribute first, then an item. Undefined when there is neither.
Value get_attribute(const Value& object, std::string_view name, Budget& budget);
// object[key]: an item first, then a method.
Value get_item(const Value& object, const Value& key, Budget& budget);
Value slice(
    const Value& object, const Value& start, const Value& stop, const Value& step, Budget& budget);

// What a for loop would see: items, dict keys, characters; a generator is used up by it.
std::vector<Value> iterate(const Value& value, Budget& budget);
// len(value)
size_t length(const Value& value);

}  // namespace nibble::text::jinja
