// The methods of dict, list, tuple and loop. Those that would change their object exist only to say
// that the sandbox does not allow it, as Hugging Face's does.
#include <algorithm>

#include "text/template/access.h"
#include "text/template/format.h"
#include "text/template/library.h"

namespace nibble::text::jinja {
namespace {

Value forbidden(Interpreter& /*interpreter*/, const Value& self, Arguments& /*arguments*/) {
  throw TemplateError("methods that change a '" + std::string(type_name(self)) +
                      "' object are not allowed in templates");
}

Value dict_get(Interpreter& /*interpreter*/, const Value& self, Arguments& arguments) {
  const auto bound = bind("get", arguments, {"key", "default"});
  if (const Value* found = self.dict().find(required("get", bound, 0))) {
    return *found;
  }
  return bound[1] == nullptr ? Value() : *bound[1];
}

template <SequenceKind kind>
Value dict_view(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  bind("view", arguments, {});
  std::vector<Value> items;
  interpreter.budget().take_bytes(self.dict().items().size() * kValueBytes * 2);
  for (const auto& [key, value] : self.dict().items()) {
    if (kind == SequenceKind::DictKeys) {
      items.push_back(key);
    } else if (kind == SequenceKind::DictValues) {
      items.push_back(value);
    } else {
      items.push_back(Value::of_sequence(SequenceKind::Tuple, {key, value}));
    }
  }
  return Value::of_sequence(kind, std::move(items));
}

Value copy(Interpreter& /*interpreter*/, const Value& self, Arguments& arguments) {
  bind("copy", arguments, {});
  return self;  // values do not change, so the same object will do
}

Value sequence_index(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto bound = bind("index", arguments, {"value"});
  const auto& items = self.sequence().items;
  interpreter.budget().step(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    if (equal(items[i], required("index", bound, 0))) {
      return Value::of_int(static_cast<Int>(i));
    }
  }
  throw TemplateError("the value is not in the list");
}

Value sequence_count(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto bound = bind("count", arguments, {"value"});
  const Value& wanted = required("count", bound, 0);
  const auto& items = self.sequence().items;
  interpreter.budget().step(items.size());
  return Value::of_int(std::count_if(
      items.begin(), items.end(), [&](const Value& item) { return equal(item, wanted); }));
}

Value loop_cycle(Interpreter& /*interpreter*/, const Value& self, Arguments& arguments) {
  if (arguments.positional.empty()) {
    throw TemplateError("no items for cycling given");
  }
  return arguments.positional[self.loop().index % arguments.positional.size()];
}

Value loop_changed(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  std::string now = " ";  // never the text of no call at all
  for (const Value& argument : arguments.positional) {
    append_repr(argument, now, interpreter.budget());
    now += ", ";
  }
  const bool changed = self.loop().changed != now;
  self.loop().changed = std::move(now);
  return Value::of_bool(changed);
}

constexpr FunctionEntry kDictMethods[] = {
    {"clear", forbidden},
    {"copy", copy},
    {"get", dict_get},
    {"items", dict_view<SequenceKind::DictItems>},
    {"keys", dict_view<SequenceKind::DictKeys>},
    {"pop", forbidden},
    {"popitem", forbidden},
    {"setdefault", forbidden},
    {"update", forbidden},
    {"values", dict_view<SequenceKind::DictValues>},
};
constexpr FunctionEntry kTupleMethods[] = {
    {"count", sequence_count},
    {"index", sequence_index},
};
constexpr FunctionEntry kListMethods[] = {
    {"append", forbidden},
    {"clear", forbidden},
    {"copy", copy},
    {"extend", forbidden},
    {"insert", forbidden},
    {"pop", forbidden},
    {"remove", forbidden},
    {"reverse", forbidden},
    {"sort", forbidden},
};
constexpr FunctionEntry kLoopMethods[] = {
    {"changed", loop_changed},
    {"cycle", loop_cycle},
};

std::optional<Function> find_in(std::span<const FunctionEntry> methods, std::string_view name) {
  for (const FunctionEntry& method : methods) {
    if (method.name == name) {
      return Function{method.name, method.call, nullptr};
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Function> find_container_method(const Value& object, std::string_view name) {
  if (object.is_dict()) {
    return find_in(kDictMethods, name);
  }
  if (object.kind() == Kind::Loop) {
    return find_in(kLoopMethods, name);
  }
  const bool is_list = object.is_sequence(SequenceKind::List);
  if (is_list || object.is_sequence(SequenceKind::Tuple)) {
    const auto found = find_in(kTupleMethods, name);
    return found || !is_list ? found : find_in(kListMethods, name);
  }
  return std::nullopt;
}

}  // namespace nibble::text::jinja
