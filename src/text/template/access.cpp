#include "text/template/access.h"

#include <algorithm>

#include "text/template/format.h"
#include "text/template/interpreter.h"
#include "text/template/library.h"
#include "text/tokenizer/unicode.h"

namespace nibble::text::jinja {
namespace {

std::string object_name(const Value& object) {
  if (object.is_none()) {
    return "None";
  }
  return "'" + std::string(type_name(object)) + " object'";
}

Value no_attribute(const Value& object, std::string_view name) {
  return Value::undefined(object_name(object) + " has no attribute '" + std::string(name) + "'");
}

// The byte range of character `index`; the index is in range.
std::string_view character_at(const std::string& text, size_t index) {
  if (is_ascii(text)) {
    return std::string_view(text).substr(index, 1);
  }
  size_t at = 0;
  for (; index > 0; --index) {
    at += utf8_step(text, at).length;
  }
  return std::string_view(text).substr(at, utf8_step(text, at).length);
}

std::vector<std::string_view> characters(const std::string& text) {
  std::vector<std::string_view> out;
  for (size_t at = 0; at < text.size();) {
    const size_t size = utf8_step(text, at).length;
    out.push_back(std::string_view(text).substr(at, size));
    at += size;
  }
  return out;
}

bool is_indexable(const Value& value) {
  return value.is_sequence(SequenceKind::List) || value.is_sequence(SequenceKind::Tuple) ||
         value.is_sequence(SequenceKind::Range);
}

Value loop_attribute(const Value& object, std::string_view name) {
  const LoopState& loop = object.loop();
  const auto index = static_cast<Int>(loop.index);
  const auto count = static_cast<Int>(loop.items.size());
  if (name == "index") {
    return Value::of_int(index + 1);
  }
  if (name == "index0") {
    return Value::of_int(index);
  }
  if (name == "revindex") {
    return Value::of_int(count - index);
  }
  if (name == "revindex0") {
    return Value::of_int(count - index - 1);
  }
  if (name == "first") {
    return Value::of_bool(index == 0);
  }
  if (name == "last") {
    return Value::of_bool(index + 1 == count);
  }
  if (name == "length") {
    return Value::of_int(count);
  }
  if (name == "depth") {
    return Value::of_int(Int{loop.depth} + 1);
  }
  if (name == "depth0") {
    return Value::of_int(loop.depth);
  }
  if (name == "previtem") {
    return index == 0 ? Value::undefined("there is no previous item") : loop.items[loop.index - 1];
  }
  if (name == "nextitem") {
    return index + 1 >= count ? Value::undefined("there is no next item")
                              : loop.items[loop.index + 1];
  }
  if (const auto method = find_container_method(object, name)) {
    Function bound = *method;
    bound.self = std::make_shared<const Value>(object);
    return Value::of_function(std::move(bound));
  }
  return no_attribute(object, name);
}

std::optional<Value> method_of(const Value& object, std::string_view name) {
  std::optional<Function> method =
      object.is_string() ? find_string_method(name) : find_container_method(object, name);
  if (!method) {
    return std::nullopt;
  }
  method->self = std::make_shared<const Value>(object);
  return Value::of_function(std::move(*method));
}

// Python's slice.indices for a sequence of `count` items.
struct SliceRange {
  Int start;
  Int stop;
  Int step;
};

Int slice_number(const Value& value, Int fallback) {
  if (value.is_none()) {
    return fallback;
  }
  if (!value.is_int() && !value.is_bool()) {
    require_defined(value);
    throw TemplateError("slice indices must be integers or None or have an __index__ method");
  }
  return value.as_int();
}

SliceRange slice_range(const Value& start, const Value& stop, const Value& step, size_t size) {
  const auto count = static_cast<Int>(size);
  SliceRange range{};
  range.step = slice_number(step, 1);
  if (range.step == 0) {
    throw TemplateError("slice step cannot be zero");
  }
  const bool back = range.step < 0;
  const Int low = back ? -1 : 0;
  const Int high = back ? count - 1 : count;
  const auto clamp = [&](Int index) {
    if (index < 0) {
      index += count;
    }
    return std::clamp(index, low, high);
  };
  range.start = start.is_none() ? (back ? high : low) : clamp(slice_number(start, 0));
  range.stop = stop.is_none() ? (back ? low : high) : clamp(slice_number(stop, 0));
  return range;
}

template <typename Take>
void for_slice(const SliceRange& range, const Take& take) {
  for (Int i = range.start; range.step > 0 ? i < range.stop : i > range.stop;) {
    take(static_cast<size_t>(i));
    if (range.step > 0 ? range.step >= range.stop - i : range.step <= range.stop - i) {
      break;  // the next index would pass the end (and might overflow)
    }
    i += range.step;
  }
}

}  // namespace

Value get_attribute(const Value& object, std::string_view name, Budget& budget) {
  require_defined(object);
  if (name.starts_with("__")) {
    throw TemplateError("access to attribute '" + std::string(name) + "' of '" +
                        std::string(type_name(object)) + "' object is unsafe.");
  }
  switch (object.kind()) {
    case Kind::Namespace:
      for (const auto& [known, value] : object.name_space().attributes) {
        if (known == name) {
          return value;
        }
      }
      return no_attribute(object, name);
    case Kind::Loop:
      return loop_attribute(object, name);
    case Kind::Macro:
      return name == "name" ? Value::of_string(object.macro().name) : no_attribute(object, name);
    default:
      break;
  }
  if (auto method = method_of(object, name)) {
    return std::move(*method);
  }
  if (object.is_dict()) {
    budget.step();
    if (const Value* found = object.dict().find(name)) {
      return *found;
    }
  }
  return no_attribute(object, name);
}

Value get_item(const Value& object, const Value& key, Budget& budget) {
  require_defined(object);
  budget.step();
  if (object.is_dict()) {
    if (const Value* found = object.dict().find(key)) {
      return *found;
    }
  } else if ((key.is_int() || key.is_bool()) && (is_indexable(object) || object.is_string())) {
    const size_t count = length(object);
    Int index = key.as_int();
    index += index < 0 ? static_cast<Int>(count) : 0;
    if (index >= 0 && index < static_cast<Int>(count)) {
      if (!object.is_string()) {
        return object.sequence().items[static_cast<size_t>(index)];
      }
      budget.step(count / 64);
      return Value::of_string(std::string(character_at(object.str(), static_cast<size_t>(index))),
                              object.is_safe());
    }
  }
  if (key.is_string()) {
    if (object.kind() == Kind::Loop || object.kind() == Kind::Namespace) {
      return get_attribute(object, key.str(), budget);
    }
    if (auto method = method_of(object, key.str())) {
      return std::move(*method);
    }
    return no_attribute(object, key.str());
  }
  std::string shown;
  append_repr(key, shown, budget);
  return Value::undefined(object_name(object) + " has no element " + shown);
}

Value slice(
    const Value& object, const Value& start, const Value& stop, const Value& step, Budget& budget) {
  require_defined(object);
  if (object.is_string()) {
    const std::string& text = object.str();
    std::string out;
    if (is_ascii(text)) {
      for_slice(slice_range(start, stop, step, text.size()),
                [&](size_t i) { out.push_back(text[i]); });
    } else {
      budget.take_bytes(text.size());
      const std::vector<std::string_view> parts = characters(text);
      for_slice(slice_range(start, stop, step, parts.size()), [&](size_t i) { out += parts[i]; });
    }
    budget.take_bytes(out.size() + kValueBytes);
    return Value::of_string(std::move(out), object.is_safe());
  }
  if (!is_indexable(object)) {
    throw TemplateError("'" + std::string(type_name(object)) + "' object is not subscriptable");
  }
  const Sequence& sequence = object.sequence();
  std::vector<Value> items;
  for_slice(slice_range(start, stop, step, sequence.items.size()),
            [&](size_t i) { items.push_back(sequence.items[i]); });
  budget.take_bytes(items.size() * sizeof(Value) + kValueBytes);
  return Value::of_sequence(sequence.kind, std::move(items));
}

std::vector<Value> iterate(const Value& value, Budget& budget) {
  switch (value.kind()) {
    case Kind::Undefined:
      return {};
    case Kind::String: {
      std::vector<Value> items;
      budget.take_bytes(value.str().size() * kValueBytes);
      for (const std::string_view character : characters(value.str())) {
        items.push_back(Value::of_string(std::string(character)));
      }
      return items;
    }
    case Kind::Dict: {
      std::vector<Value> keys;
      budget.take_bytes(value.dict().items().size() * sizeof(Value));
      for (const auto& [key, item] : value.dict().items()) {
        keys.push_back(key);
      }
      return keys;
    }
    case Kind::Sequence: {
      Sequence& sequence = value.sequence();
      budget.take_bytes((sequence.items.size() - sequence.consumed) * sizeof(Value));
      std::vector<Value> items(sequence.items.begin() + static_cast<ptrdiff_t>(sequence.consumed),
                               sequence.items.end());
      if (sequence.kind == SequenceKind::Generator) {
        sequence.consumed = sequence.items.size();
      }
      return items;
    }
    default:
      throw TemplateError("'" + std::string(type_name(value)) + "' object is not iterable");
  }
}

size_t length(const Value& value) {
  switch (value.kind()) {
    case Kind::Undefined:
      return 0;
    case Kind::String:
      return is_ascii(value.str()) ? value.str().size() : utf8_length(value.str());
    case Kind::Dict:
      return value.dict().items().size();
    case Kind::Sequence:
      if (value.sequence().kind != SequenceKind::Generator) {
        return value.sequence().items.size();
      }
      break;
    case Kind::Loop:
      return value.loop().items.size();
    default:
      break;
  }
  throw TemplateError("object of type '" + std::string(type_name(value)) + "' has no len()");
}

}  // namespace nibble::text::jinja
