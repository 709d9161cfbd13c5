// Filters over sequences and dicts.
#include <algorithm>

#include "text/template/access.h"
#include "text/template/attribute_path.h"
#include "text/template/case_mapping.h"
#include "text/template/format.h"
#include "text/template/library.h"

namespace nibble::text::jinja {
namespace {

bool flag(const Value* value) { return value != nullptr && is_true(*value); }

Value generator(std::vector<Value> items) {
  return Value::of_sequence(SequenceKind::Generator, std::move(items));
}

Value length_filter(Interpreter& /*interpreter*/, const Value& input, Arguments& arguments) {
  bind("length", arguments, {});
  return Value::of_int(static_cast<Int>(length(input)));
}

Value first(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  bind("first", arguments, {});
  if (input.kind() == Kind::Sequence && !input.is_sequence(SequenceKind::Generator) &&
      !input.sequence().items.empty()) {
    return input.sequence().items.front();
  }
  std::vector<Value> items = iterate(input, interpreter.budget());
  return items.empty() ? Value::undefined("No first item, sequence was empty.")
                       : std::move(items.front());
}

void require_reversible(const Value& input) {
  if (input.is_sequence(SequenceKind::Generator)) {
    throw TemplateError("'generator' object is not reversible");
  }
}

Value last(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  bind("last", arguments, {});
  require_reversible(input);
  std::vector<Value> items = iterate(input, interpreter.budget());
  return items.empty() ? Value::undefined("No last item, sequence was empty.")
                       : std::move(items.back());
}

Value list_filter(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  bind("list", arguments, {});
  return Value::of_list(iterate(input, interpreter.budget()));
}

Value reverse(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  bind("reverse", arguments, {});
  if (input.is_string()) {
    return slice(input, Value(), Value(), Value::of_int(-1), interpreter.budget());
  }
  const bool one_pass = input.is_sequence(SequenceKind::Generator);
  std::vector<Value> items = iterate(input, interpreter.budget());
  std::reverse(items.begin(), items.end());
  return one_pass ? Value::of_list(std::move(items)) : generator(std::move(items));
}

Value join(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound = bind("join", arguments, {"d", "attribute"});
  const std::string separator = bound[0] == nullptr ? "" : interpreter.str(*bound[0]);
  const AttributePath path(bound[1], interpreter);
  std::string out;
  bool begun = false;
  for (const Value& item : iterate(input, interpreter.budget())) {
    if (begun) {
      interpreter.budget().take_bytes(separator.size());
      out += separator;
    }
    begun = true;
    append_str(path.of(item), out, interpreter.budget());
  }
  return Value::of_string(std::move(out));
}

Value sum(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound = bind("sum", arguments, {"attribute", "start"});
  const AttributePath path(bound[0], interpreter);
  Value total = bound[1] == nullptr ? Value::of_int(0) : *bound[1];
  if (total.is_string()) {
    throw TemplateError("sum() can't sum strings [use ''.join(seq) instead]");
  }
  for (const Value& item : iterate(input, interpreter.budget())) {
    total = binary(Operator::Add, total, path.of(item), interpreter.budget());
  }
  return total;
}

// What sort, unique, min and max compare.
Value sort_key(const Value& value, bool case_sensitive, Interpreter& interpreter) {
  return value.is_string() && !case_sensitive ? interpreter.string(to_lower(value.str())) : value;
}

// The list of the second values, in the order of the first.
Value sorted_by_keys(std::vector<std::pair<Value, Value>>&& keyed,
                     bool descending,
                     Interpreter& interpreter) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return order(descending ? b.first : a.first,
                 descending ? a.first : b.first,
                 "<",
                 interpreter.budget()) < 0;
  });
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (auto& [key, item] : keyed) {
    items.push_back(std::move(item));
  }
  return Value::of_list(std::move(items));
}

Value sort(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound = bind("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const std::vector<AttributePath> paths = attribute_paths(bound[2], interpreter);
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : iterate(input, interpreter.budget())) {
    std::vector<Value> keys;
    keys.reserve(paths.size());
    for (const AttributePath& path : paths) {
      keys.push_back(sort_key(path.of(item), flag(bound[1]), interpreter));
    }
    Value key = keys.size() == 1 ? std::move(keys[0]) : Value::of_list(std::move(keys));
    keyed.emplace_back(std::move(key), std::move(item));
  }
  return sorted_by_keys(std::move(keyed), flag(bound[0]), interpreter);
}

Value dictsort(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound = bind("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = bound[1] == nullptr ? "key" : string_argument("dictsort", *bound[1]);
  require_defined(input);
  if (!input.is_dict() || (by != "key" && by != "value")) {
    throw TemplateError("dictsort(): expected a dict, and 'key' or 'value' to sort by");
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : input.dict().items()) {
    keyed.emplace_back(sort_key(by == "key" ? key : value, flag(bound[0]), interpreter),
                       Value::of_sequence(SequenceKind::Tuple, {key, value}));
  }
  return sorted_by_keys(std::move(keyed), flag(bound[2]), interpreter);
}

Value unique(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound = bind("unique", arguments, {"case_sensitive", "attribute"});
  const AttributePath path(bound[1], interpreter);
  Dict seen;
  std::vector<Value> items;
  for (Value& item : iterate(input, interpreter.budget())) {
    Value key = sort_key(path.of(item), flag(bound[0]), interpreter);
    interpreter.budget().step(key.is_string() ? 1 : seen.items().size() + 1);
    if (seen.find(key) == nullptr) {
      seen.set(std::move(key), Value());
      items.push_back(std::move(item));
    }
  }
  return generator(std::move(items));
}

template <bool largest>
Value extreme(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound = bind(largest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const AttributePath path(bound[1], interpreter);
  std::optional<Value> best;
  Value best_key;
  for (Value& item : iterate(input, interpreter.budget())) {
    Value key = sort_key(path.of(item), flag(bound[0]), interpreter);
    const int sign = best ? order(key, best_key, largest ? ">" : "<", interpreter.budget()) : 0;
    if (!best || (largest ? sign > 0 : sign < 0)) {
      best = std::move(item);
      best_key = std::move(key);
    }
  }
  return best ? *best : Value::undefined("No aggregated item, sequence was empty.");
}

Value items_filter(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  bind("items", arguments, {});
  if (input.is_undefined()) {
    return generator({});
  }
  if (!input.is_dict()) {
    throw TemplateError("Can only get item pairs from a mapping.");
  }
  std::vector<Value> items;
  interpreter.budget().take_bytes(input.dict().items().size() * kValueBytes * 2);
  for (const auto& [key, value] : input.dict().items()) {
    items.push_back(Value::of_sequence(SequenceKind::Tuple, {key, value}));
  }
  return generator(std::move(items));
}

Value batch(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const auto bound = bind("batch", arguments, {"linecount", "fill_with"});
  const Int size = integer_argument(&required("batch", bound, 0), 1);
  if (size < 1 || size > Int{kMaxRange}) {
    throw TemplateError("batch(): expected a positive line count");
  }
  std::vector<Value> rows;
  std::vector<Value> row;
  for (Value& item : iterate(input, interpreter.budget())) {
    row.push_back(std::move(item));
    if (static_cast<Int>(row.size()) == size) {
      rows.push_back(Value::of_list(std::move(row)));
      row.clear();
    }
  }
  if (!row.empty()) {
    while (bound[1] != nullptr && !bound[1]->is_none() && static_cast<Int>(row.size()) < size) {
      interpreter.budget().take_bytes(sizeof(Value));
      row.push_back(*bound[1]);
    }
    rows.push_back(Value::of_list(std::move(row)));
  }
  return generator(std::move(rows));
}

constexpr Filter kFilters[] = {
    {"batch", batch},
    {"count", length_filter},
    {"dictsort", dictsort},
    {"first", first},
    {"items", items_filter},
    {"join", join},
    {"last", last},
    {"length", length_filter},
    {"list", list_filter},
    {"max", extreme<true>},
    {"min", extreme<false>},
    {"reverse", reverse},
    {"sort", sort},
    {"sum", sum},
    {"unique", unique},
};

}  // namespace

std::span<const Filter> sequence_filters() { return kFilters; }

}  // namespace nibble::text::jinja
