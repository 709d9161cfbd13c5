// Global functions: range, dict, namespace, and Hugging Face's raise_exception and strftime_now.
#include <ctime>

#include "text/template/access.h"
#include "text/template/library.h"

namespace nibble::text::jinja {
namespace {

constexpr size_t kMaxTimeBytes = 4096;

Value range(Interpreter& interpreter, const Value& /*self*/, Arguments& arguments) {
  if (!arguments.named.empty() || arguments.positional.empty() || arguments.positional.size() > 3) {
    throw TemplateError("range expected 1 to 3 arguments");
  }
  const auto& given = arguments.positional;
  const bool one = given.size() == 1;
  const Int start = one ? 0 : integer_argument(&given[0], 0);
  const Int stop = integer_argument(&given[one ? 0 : 1], 0);
  const Int step = given.size() == 3 ? integer_argument(&given[2], 1) : 1;
  if (step == 0) {
    throw TemplateError("range() arg 3 must not be zero");
  }
  const Int span = step > 0 ? stop - start : start - stop;
  const Int stride = step > 0 ? step : -step;
  const Int count = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (count > Int{kMaxRange}) {
    throw TemplateError("Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000).",
                        ErrorCode::TooLarge);
  }
  interpreter.budget().take_bytes(static_cast<uint64_t>(count) * sizeof(Value));
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(count));
  for (Int i = 0; i < count; ++i) {
    items.push_back(Value::of_int(start + i * step));
  }
  return Value::of_sequence(SequenceKind::Range, std::move(items));
}

void add_pairs(Interpreter& interpreter, Arguments& arguments, Dict& dict) {
  if (arguments.positional.size() > 1) {
    throw TemplateError("dict expected at most 1 argument");
  }
  if (!arguments.positional.empty()) {
    const Value& given = arguments.positional[0];
    if (given.is_dict()) {
      for (const auto& [key, value] : given.dict().items()) {
        dict.set(key, value);
      }
    } else {
      for (const Value& item : iterate(given, interpreter.budget())) {
        const std::vector<Value> pair = iterate(item, interpreter.budget());
        if (pair.size() != 2) {
          throw TemplateError("dictionary update sequence element has length " +
                              std::to_string(pair.size()) + "; 2 is required");
        }
        dict.set(pair[0], pair[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) {
    dict.set(Value::of_string(name), value);
  }
  interpreter.budget().take_bytes(dict.items().size() * kValueBytes);
}

Value make_dict(Interpreter& interpreter, const Value& /*self*/, Arguments& arguments) {
  Dict dict;
  add_pairs(interpreter, arguments, dict);
  return Value::of_dict(std::move(dict));
}

Value make_namespace(Interpreter& interpreter, const Value& /*self*/, Arguments& arguments) {
  Dict dict;
  add_pairs(interpreter, arguments, dict);
  Namespace attributes;
  for (const auto& [key, value] : dict.items()) {
    attributes.attributes.emplace_back(key.is_string() ? key.str() : interpreter.str(key), value);
  }
  return interpreter.make_namespace(std::move(attributes));
}

Value raise_exception(Interpreter& interpreter, const Value& /*self*/, Arguments& arguments) {
  const auto bound = bind("raise_exception", arguments, {"message"});
  throw TemplateError(interpreter.str(required("raise_exception", bound, 0)));
}

Value strftime_now(Interpreter& interpreter, const Value& /*self*/, Arguments& arguments) {
  const auto bound = bind("strftime_now", arguments, {"format"});
  const std::string& format = string_argument("strftime_now", required("strftime_now", bound, 0));
  const auto seconds = static_cast<std::time_t>(interpreter.unix_seconds());
  std::tm now{};
  if (localtime_r(&seconds, &now) == nullptr || format.size() > kMaxTimeBytes / 8) {
    throw TemplateError("strftime_now(): bad format");
  }
  // A mark at the end tells an empty result from a full buffer.
  std::string text(kMaxTimeBytes, '\0');
  const size_t size = std::strftime(text.data(), text.size(), (format + ".").c_str(), &now);
  text.resize(size == 0 ? 0 : size - 1);
  return interpreter.string(std::move(text));
}

constexpr FunctionEntry kGlobals[] = {
    {"range", range},
    {"dict", make_dict},
    {"namespace", make_namespace},
    {"raise_exception", raise_exception},
    {"strftime_now", strftime_now},
};

}  // namespace

std::optional<Function> find_global(std::string_view name) {
  for (const FunctionEntry& function : kGlobals) {
    if (function.name == name) {
      return Function{function.name, function.call, nullptr};
    }
  }
  return std::nullopt;
}

}  // namespace nibble::text::jinja
