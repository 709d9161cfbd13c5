// Arithmetic, comparison and membership with Python's rules.
#include <cmath>

#include "text/template/access.h"
#include "text/template/format.h"

namespace nibble::text::jinja {
namespace {

// Beyond this arithmetic stops: far outside of anything a prompt needs, far inside of Int.
constexpr Int kLargestInt = (Int{1} << 100);

[[noreturn]] void fail_operands(std::string_view op, const Value& left, const Value& right) {
  throw TemplateError("unsupported operand type(s) for " + std::string(op) + ": '" +
                      std::string(type_name(left)) + "' and '" + std::string(type_name(right)) +
                      "'");
}

Value checked(Int value) {
  if (value > kLargestInt || value < -kLargestInt) {
    throw TemplateError("integer is too large", ErrorCode::TooLarge);
  }
  return Value::of_int(value);
}

Int multiply(Int a, Int b) {
  Int product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw TemplateError("integer is too large", ErrorCode::TooLarge);
  }
  return product;
}

Value add(const Value& left, const Value& right, Budget& budget) {
  if (left.is_number() && right.is_number()) {
    if (left.is_float() || right.is_float()) {
      return Value::of_float(left.as_float() + right.as_float());
    }
    return checked(left.as_int() + right.as_int());
  }
  if (left.is_string() && right.is_string()) {
    const bool safe = left.is_safe() || right.is_safe();
    std::string text = safe && !left.is_safe() ? escape_html(left.str()) : left.str();
    text += safe && !right.is_safe() ? escape_html(right.str()) : right.str();
    budget.take_bytes(text.size() + kValueBytes);
    return Value::of_string(std::move(text), safe);
  }
  for (const SequenceKind kind : {SequenceKind::List, SequenceKind::Tuple}) {
    if (left.is_sequence(kind) && right.is_sequence(kind)) {
      std::vector<Value> items = left.sequence().items;
      const std::vector<Value>& more = right.sequence().items;
      budget.take_bytes((items.size() + more.size()) * sizeof(Value) + kValueBytes);
      items.insert(items.end(), more.begin(), more.end());
      return Value::of_sequence(kind, std::move(items));
    }
  }
  if (left.is_string()) {
    throw TemplateError("can only concatenate str (not \"" + std::string(type_name(right)) +
                        "\") to str");
  }
  if (left.is_sequence(SequenceKind::List)) {
    throw TemplateError("can only concatenate list (not \"" + std::string(type_name(right)) +
                        "\") to list");
  }
  fail_operands("+", left, right);
}

Value repeat(const Value& value, Int count, Budget& budget) {
  const Int times = count < 0 ? 0 : count;
  const bool text = value.is_string();
  const auto unit =
      static_cast<Int>(text ? value.str().size() : value.sequence().items.size() * sizeof(Value));
  const Int total = unit == 0 ? 0 : times > (Int{1} << 40) ? Int{1} << 40 : unit * times;
  budget.take_bytes(static_cast<uint64_t>(total) + kValueBytes);
  if (text) {
    std::string out;
    for (Int i = 0; unit > 0 && i < times; ++i) {
      out += value.str();
    }
    return Value::of_string(std::move(out), value.is_safe());
  }
  std::vector<Value> items;
  for (Int i = 0; unit > 0 && i < times; ++i) {
    items.insert(items.end(), value.sequence().items.begin(), value.sequence().items.end());
  }
  return Value::of_sequence(value.sequence().kind, std::move(items));
}

bool is_repeatable(const Value& value) {
  return value.is_string() || value.is_sequence(SequenceKind::List) ||
         value.is_sequence(SequenceKind::Tuple);
}

Value multiplied(const Value& left, const Value& right, Budget& budget) {
  if (left.is_number() && right.is_number()) {
    if (left.is_float() || right.is_float()) {
      return Value::of_float(left.as_float() * right.as_float());
    }
    return checked(multiply(left.as_int(), right.as_int()));
  }
  if (is_repeatable(left) && (right.is_int() || right.is_bool())) {
    return repeat(left, right.as_int(), budget);
  }
  if (is_repeatable(right) && (left.is_int() || left.is_bool())) {
    return repeat(right, left.as_int(), budget);
  }
  fail_operands("*", left, right);
}

Int floor_divide(Int a, Int b) {
  const Int quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

double float_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0.0) {
    return std::copysign(0.0, b);
  }
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

Value divide(Operator op, const Value& left, const Value& right) {
  const std::string_view sign = op == Operator::Divide        ? "/"
                                : op == Operator::FloorDivide ? "//"
                                                              : "%";
  if (!left.is_number() || !right.is_number()) {
    fail_operands(sign, left, right);
  }
  const bool real = left.is_float() || right.is_float();
  if (real ? right.as_float() == 0.0 : right.as_int() == 0) {
    throw TemplateError(op == Operator::Divide
                            ? real ? "float division by zero" : "division by zero"
                        : real ? "float floor division by zero"
                               : "integer division or modulo by zero");
  }
  if (op == Operator::Divide) {
    return Value::of_float(left.as_float() / right.as_float());
  }
  if (op == Operator::FloorDivide) {
    if (real) {
      const double a = left.as_float();
      const double b = right.as_float();
      const double quotient = (a - float_modulo(a, b)) / b;
      return Value::of_float(quotient == 0.0 ? std::copysign(0.0, a / b)
                                             : std::floor(quotient + 0.5));
    }
    return checked(floor_divide(left.as_int(), right.as_int()));
  }
  if (real) {
    return Value::of_float(float_modulo(left.as_float(), right.as_float()));
  }
  const Int a = left.as_int();
  const Int b = right.as_int();
  return checked(a - floor_divide(a, b) * b);
}

Value power(const Value& left, const Value& right) {
  if (!left.is_number() || !right.is_number()) {
    fail_operands("** or pow()", left, right);
  }
  if (left.is_float() || right.is_float() || right.as_int() < 0) {
    if (left.as_float() == 0.0 && right.as_float() < 0) {
      throw TemplateError("0.0 cannot be raised to a negative power");
    }
    const double result = std::pow(left.as_float(), right.as_float());
    if (std::isnan(result) && !std::isnan(left.as_float()) && !std::isnan(right.as_float())) {
      throw TemplateError("a complex number is not supported");
    }
    return Value::of_float(result);
  }
  Int base = left.as_int();
  Int exponent = right.as_int();
  Int result = 1;
  if (base == 0 || base == 1 || base == -1) {  // any exponent
    return Value::of_int(exponent == 0 ? 1 : base < 0 && exponent % 2 == 0 ? 1 : base);
  }
  while (exponent > 0) {
    if ((exponent & 1) != 0) {
      result = multiply(result, base);
    }
    exponent >>= 1;
    if (exponent > 0) {
      base = multiply(base, base);
    }
  }
  return checked(result);
}

int sign_of(bool less, bool greater) { return less ? -1 : greater ? 1 : 0; }

}  // namespace

Value negate(const Value& value) {
  require_defined(value);
  if (value.is_float()) {
    return Value::of_float(-value.as_float());
  }
  if (!value.is_number()) {
    throw TemplateError("bad operand type for unary -: '" + std::string(type_name(value)) + "'");
  }
  return Value::of_int(-value.as_int());
}

Value positive(const Value& value) {
  require_defined(value);
  if (value.is_float()) {
    return value;
  }
  if (!value.is_number()) {
    throw TemplateError("bad operand type for unary +: '" + std::string(type_name(value)) + "'");
  }
  return Value::of_int(value.as_int());
}

Value binary(Operator op, const Value& left, const Value& right, Budget& budget) {
  if (op == Operator::Modulo && left.is_string()) {
    return Value::of_string(percent_format(left.str(), right, budget));
  }
  require_defined(left);
  require_defined(right);
  switch (op) {
    case Operator::Add:
      return add(left, right, budget);
    case Operator::Subtract:
      if (!left.is_number() || !right.is_number()) {
        fail_operands("-", left, right);
      }
      if (left.is_float() || right.is_float()) {
        return Value::of_float(left.as_float() - right.as_float());
      }
      return checked(left.as_int() - right.as_int());
    case Operator::Multiply:
      return multiplied(left, right, budget);
    case Operator::Divide:
    case Operator::FloorDivide:
    case Operator::Modulo:
      return divide(op, left, right);
    case Operator::Power:
      return power(left, right);
    default:
      return Value::of_bool(compare(op, left, right, budget));
  }
}

int order(const Value& left, const Value& right, std::string_view op, Budget& budget) {
  budget.step();
  require_defined(left);
  require_defined(right);
  if (left.is_number() && right.is_number()) {
    if (left.is_float() || right.is_float()) {
      return sign_of(left.as_float() < right.as_float(), left.as_float() > right.as_float());
    }
    return sign_of(left.as_int() < right.as_int(), left.as_int() > right.as_int());
  }
  if (left.is_string() && right.is_string()) {
    const int result = left.str().compare(right.str());  // byte order is code point order
    return sign_of(result < 0, result > 0);
  }
  for (const SequenceKind kind : {SequenceKind::List, SequenceKind::Tuple}) {
    if (left.is_sequence(kind) && right.is_sequence(kind)) {
      const std::vector<Value>& a = left.sequence().items;
      const std::vector<Value>& b = right.sequence().items;
      for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
        if (!equal(a[i], b[i])) {
          return order(a[i], b[i], op, budget);
        }
      }
      return sign_of(a.size() < b.size(), a.size() > b.size());
    }
  }
  throw TemplateError("'" + std::string(op) + "' not supported between instances of '" +
                      std::string(type_name(left)) + "' and '" + std::string(type_name(right)) +
                      "'");
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  switch (container.kind()) {
    case Kind::Undefined:
      return false;
    case Kind::String:
      if (!item.is_string()) {
        require_defined(item);
        throw TemplateError("'in <string>' requires string as left operand, not " +
                            std::string(type_name(item)));
      }
      budget.step(container.str().size() / 64);
      return container.str().find(item.str()) != std::string::npos;
    case Kind::Dict:
      require_hashable(item);
      return container.dict().find(item) != nullptr;
    default: {
      const bool in_place =
          container.kind() == Kind::Sequence && !container.is_sequence(SequenceKind::Generator);
      const std::vector<Value> copied =
          in_place ? std::vector<Value>() : iterate(container, budget);
      for (const Value& candidate : in_place ? container.sequence().items : copied) {
        budget.step();
        if (equal(candidate, item)) {
          return true;
        }
      }
      return false;
    }
  }
}

bool compare(Operator op, const Value& left, const Value& right, Budget& budget) {
  const bool has_nan = (left.is_float() && std::isnan(left.as_float())) ||
                       (right.is_float() && std::isnan(right.as_float()));
  switch (op) {
    case Operator::Equal:
      return equal(left, right);
    case Operator::NotEqual:
      return !equal(left, right);
    case Operator::Less:
      return order(left, right, "<", budget) < 0;
    case Operator::LessEqual:
      return order(left, right, "<=", budget) <= 0 && !has_nan;
    case Operator::Greater:
      return order(left, right, ">", budget) > 0;
    case Operator::GreaterEqual:
      return order(left, right, ">=", budget) >= 0 && !has_nan;
    case Operator::In:
      return contains(right, left, budget);
    case Operator::NotIn:
      return !contains(right, left, budget);
    default:
      return false;
  }
}

}  // namespace nibble::text::jinja
