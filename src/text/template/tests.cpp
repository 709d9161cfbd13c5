// The tests: "x is name".
#include "text/template/access.h"
#include "text/template/case_mapping.h"
#include "text/template/library.h"

namespace nibble::text::jinja {
namespace {

template <bool (*holds)(const Value&)>
bool plain(Interpreter& /*interpreter*/, const Value& input, Arguments& arguments) {
  bind("test", arguments, {});
  return holds(input);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.is_bool(); }
bool is_true_value(const Value& value) { return value.is_bool() && value.as_bool(); }
bool is_false_value(const Value& value) { return value.is_bool() && !value.as_bool(); }
bool is_integer(const Value& value) { return value.is_int(); }
bool is_real(const Value& value) { return value.is_float(); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_text(const Value& value) { return value.is_string(); }
bool is_mapping(const Value& value) { return value.is_dict(); }
bool is_escaped(const Value& value) { return value.is_safe(); }
bool is_callable(const Value& value) {
  return value.kind() == Kind::Function || value.kind() == Kind::Macro ||
         value.kind() == Kind::Loop || value.is_undefined();
}
// Python: iter(value) works. Strings, mappings and undefined count.
bool is_iterable(const Value& value) {
  return value.kind() == Kind::Sequence || value.is_string() || value.is_dict() ||
         value.is_undefined() || value.kind() == Kind::Loop;
}
// Python: it has len() and subscripts.
bool is_sequence(const Value& value) {
  return value.is_string() || value.is_dict() || value.is_undefined() ||
         value.is_sequence(SequenceKind::List) || value.is_sequence(SequenceKind::Tuple) ||
         value.is_sequence(SequenceKind::Range);
}

Int whole_number(const Value& value) {
  require_defined(value);
  if (!value.is_int() && !value.is_bool()) {
    throw TemplateError("expected an integer, found " + std::string(type_name(value)));
  }
  return value.as_int();
}
bool is_odd(const Value& value) { return whole_number(value) % 2 != 0; }
bool is_even(const Value& value) { return whole_number(value) % 2 == 0; }

bool is_upper(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  bind("upper", arguments, {});
  return is_upper_text(interpreter.str(input));
}
bool is_lower(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  bind("lower", arguments, {});
  return is_lower_text(interpreter.str(input));
}

template <Operator op>
bool compared(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound = bind("test", arguments, {"other"});
  return compare(op, input, required("test", bound, 0), interpreter.budget());
}

bool divisible_by(Interpreter& /*interpreter*/, const Value& input, Arguments& arguments) {
  const auto bound = bind("divisibleby", arguments, {"num"});
  const Int divisor = whole_number(required("divisibleby", bound, 0));
  if (divisor == 0) {
    throw TemplateError("integer division or modulo by zero");
  }
  return whole_number(input) % divisor == 0;
}

bool same_as(Interpreter& /*interpreter*/, const Value& input, Arguments& arguments) {
  const auto bound = bind("sameas", arguments, {"other"});
  return input.same_object(required("sameas", bound, 0));
}

template <bool (*has)(std::string_view)>
bool named(Interpreter& /*interpreter*/, const Value& input, Arguments& arguments) {
  bind("test", arguments, {});
  return input.is_string() && has(input.str());
}

constexpr Test kTests[] = {
    {"!=", compared<Operator::NotEqual>},
    {"<", compared<Operator::Less>},
    {"<=", compared<Operator::LessEqual>},
    {"==", compared<Operator::Equal>},
    {">", compared<Operator::Greater>},
    {">=", compared<Operator::GreaterEqual>},
    {"boolean", plain<is_boolean>},
    {"callable", plain<is_callable>},
    {"defined", plain<is_defined>},
    {"divisibleby", divisible_by},
    {"eq", compared<Operator::Equal>},
    {"equalto", compared<Operator::Equal>},
    {"escaped", plain<is_escaped>},
    {"even", plain<is_even>},
    {"false", plain<is_false_value>},
    {"filter", named<has_filter>},
    {"float", plain<is_real>},
    {"ge", compared<Operator::GreaterEqual>},
    {"greaterthan", compared<Operator::Greater>},
    {"gt", compared<Operator::Greater>},
    {"in", compared<Operator::In>},
    {"integer", plain<is_integer>},
    {"iterable", plain<is_iterable>},
    {"le", compared<Operator::LessEqual>},
    {"lessthan", compared<Operator::Less>},
    {"lower", is_lower},
    {"lt", compared<Operator::Less>},
    {"mapping", plain<is_mapping>},
    {"ne", compared<Operator::NotEqual>},
    {"none", plain<is_none>},
    {"number", plain<is_number>},
    {"odd", plain<is_odd>},
    {"sameas", same_as},
    {"sequence", plain<is_sequence>},
    {"string", plain<is_text>},
    {"test", named<has_test>},
    {"true", plain<is_true_value>},
    {"undefined", plain<is_undefined>},
    {"upper", is_upper},
};

}  // namespace

std::span<const Test> all_tests() { return kTests; }

}  // namespace nibble::text::jinja
