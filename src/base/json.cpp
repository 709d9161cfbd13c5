#include "base/json.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "base/file.h"

namespace nibble {

namespace json = boost::json;

namespace {

// Boost.JSON 1.81 has no option for NaN and Infinity, so bare literals outside strings are replaced
// by values that read back as what they mean: 1e999 would be refused, strings are unambiguous here
// because the typed readers below are the only consumers. nullopt: more of them than any config has
// (each takes fifty times its text as a value).
std::optional<std::string> quote_special_numbers(std::string_view text) {
  constexpr size_t kMaxSpecialNumbers = 4096;
  size_t count = 0;
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      out += c;
      if (c == '\\' && i + 1 < text.size()) {
        out += text[++i];
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    if (c == '"') {
      in_string = true;
      out += c;
      continue;
    }
    bool replaced = false;
    for (std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
      if (text.substr(i, word.size()) == word) {
        if (++count > kMaxSpecialNumbers) {
          return std::nullopt;
        }
        out.append("{\"__float__\":\"").append(word).append("\"}");
        i += word.size() - 1;
        replaced = true;
        break;
      }
    }
    if (!replaced) {
      out += c;
    }
  }
  return out;
}

std::optional<double> special_float(const json::value& value) {
  const auto* object = value.if_object();
  if (object == nullptr || object->size() != 1) {
    return std::nullopt;
  }
  const auto* text = object->if_contains("__float__");
  if (text == nullptr || !text->is_string()) {
    return std::nullopt;
  }
  const std::string_view word = text->get_string();
  if (word == "Infinity") {
    return std::numeric_limits<double>::infinity();
  }
  if (word == "-Infinity") {
    return -std::numeric_limits<double>::infinity();
  }
  if (word == "NaN") {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return std::nullopt;
}

tl::unexpected<Error> wrong_kind(const std::string& path,
                                 std::string_view expected,
                                 const json::value& found) {
  return invalid(
      "expected " + std::string(expected) + ", found " + std::string(json_kind_name(found)), path);
}

Result<int64_t> to_int(const json::value& value, const std::string& path) {
  if (value.is_int64()) {
    return value.get_int64();
  }
  if (value.is_uint64()) {
    return invalid("integer is out of range", path);
  }
  if (value.is_double()) {
    const double number = value.get_double();
    if (std::trunc(number) == number && std::fabs(number) < 9.0e15) {
      return static_cast<int64_t>(number);
    }
  }
  return wrong_kind(path, "an integer", value);
}

Result<double> to_double(const json::value& value, const std::string& path) {
  if (value.is_double()) {
    return value.get_double();
  }
  if (value.is_int64()) {
    return static_cast<double>(value.get_int64());
  }
  if (value.is_uint64()) {
    return static_cast<double>(value.get_uint64());
  }
  if (auto special = special_float(value)) {
    return *special;
  }
  return wrong_kind(path, "a number", value);
}

Result<bool> to_bool(const json::value& value, const std::string& path) {
  if (value.is_bool()) {
    return value.get_bool();
  }
  return wrong_kind(path, "true or false", value);
}

Result<std::string> to_text(const json::value& value, const std::string& path) {
  if (value.is_string()) {
    return std::string(value.get_string());
  }
  return wrong_kind(path, "a string", value);
}

Result<JsonObject> to_object(const json::value& value, const std::string& path) {
  return JsonObject::from(value, path);
}

template <typename T, typename Convert>
Result<std::optional<T>> find_as(const JsonObject& object, std::string_view key, Convert convert) {
  const json::value* value = object.find(key);
  if (value == nullptr) {
    return std::optional<T>{};
  }
  return std::optional<T>{TRY(convert(*value, object.path_of(key)))};
}

template <typename T, typename Convert>
Result<T> get_as(const JsonObject& object, std::string_view key, Convert convert) {
  const json::value* value = object.find(key);
  if (value == nullptr) {
    return invalid("required but missing", object.path_of(key));
  }
  return convert(*value, object.path_of(key));
}

template <typename T, typename Convert>
Result<std::optional<std::vector<T>>> find_list(const JsonObject& object,
                                                std::string_view key,
                                                Convert convert) {
  const json::value* value = object.find(key);
  if (value == nullptr) {
    return std::optional<std::vector<T>>{};
  }
  std::vector<T> list;
  const std::string path = object.path_of(key);
  if (const auto* array = value->if_array()) {
    list.reserve(array->size());
    for (size_t i = 0; i < array->size(); ++i) {
      list.push_back(TRY(convert((*array)[i], path + "[" + std::to_string(i) + "]")));
    }
  } else {
    list.push_back(TRY(convert(*value, path)));
  }
  return std::optional<std::vector<T>>{std::move(list)};
}

}  // namespace

std::string_view json_kind_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
      return "an integer";
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "an unknown kind";
}

Result<json::value> parse_json(std::string_view text, std::string_view where, JsonLimits limits) {
  if (text.size() > limits.max_bytes) {
    return fail(ErrorCode::TooLarge,
                "JSON text has " + std::to_string(text.size()) + " bytes, the limit is " +
                    std::to_string(limits.max_bytes),
                std::string(where));
  }
  json::parse_options options;
  options.max_depth = limits.max_depth;
  json::error_code error;
  json::stream_parser parser({}, options);
  const size_t used = parser.write_some(text, error);
  if (!error && !parser.done()) {  // done: the value's end was seen, whatever follows
    parser.finish(error);
  }
  if (!error && text.find_first_not_of(" \t\r\n", used) == std::string_view::npos) {
    return parser.release();
  }
  // A second attempt for the literals that Python's json module writes and reads.
  if (text.find("Infinity") != std::string_view::npos ||
      text.find("NaN") != std::string_view::npos) {
    if (const auto quoted = quote_special_numbers(text)) {
      json::error_code second_error;
      json::value value = json::parse(*quoted, second_error, {}, options);
      if (!second_error) {
        return value;
      }
    }
  }
  const std::string reason = error ? error.message() : std::string("extra text after the value");
  return invalid("not valid JSON: " + reason + " at byte " + std::to_string(used),
                 std::string(where));
}

Result<json::value> parse_json_file(const std::string& path, JsonLimits limits) {
  const std::string text = TRY(read_text_file(path, limits.max_bytes));
  return parse_json(text, path, limits);
}

Result<JsonObject> JsonObject::from(const json::value& value, std::string path) {
  if (const auto* object = value.if_object()) {
    return JsonObject(*object, std::move(path));
  }
  return wrong_kind(path, "an object", value);
}

std::string JsonObject::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

bool JsonObject::has(std::string_view key) const { return find(key) != nullptr; }

const json::value* JsonObject::find(std::string_view key) const {
  const json::value* value = object_->if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<int64_t> JsonObject::get_int(std::string_view key) const {
  return get_as<int64_t>(*this, key, to_int);
}
Result<double> JsonObject::get_double(std::string_view key) const {
  return get_as<double>(*this, key, to_double);
}
Result<bool> JsonObject::get_bool(std::string_view key) const {
  return get_as<bool>(*this, key, to_bool);
}
Result<std::string> JsonObject::get_string(std::string_view key) const {
  return get_as<std::string>(*this, key, to_text);
}
Result<JsonObject> JsonObject::get_object(std::string_view key) const {
  return get_as<JsonObject>(*this, key, to_object);
}
Result<std::optional<int64_t>> JsonObject::find_int(std::string_view key) const {
  return find_as<int64_t>(*this, key, to_int);
}
Result<std::optional<double>> JsonObject::find_double(std::string_view key) const {
  return find_as<double>(*this, key, to_double);
}
Result<std::optional<bool>> JsonObject::find_bool(std::string_view key) const {
  return find_as<bool>(*this, key, to_bool);
}
Result<std::optional<std::string>> JsonObject::find_string(std::string_view key) const {
  return find_as<std::string>(*this, key, to_text);
}
Result<std::optional<JsonObject>> JsonObject::find_object(std::string_view key) const {
  return find_as<JsonObject>(*this, key, to_object);
}
Result<std::optional<std::vector<int64_t>>> JsonObject::find_int_list(std::string_view key) const {
  return find_list<int64_t>(*this, key, to_int);
}
Result<std::optional<std::vector<std::string>>> JsonObject::find_string_list(
    std::string_view key) const {
  return find_list<std::string>(*this, key, to_text);
}

std::string format_number(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value > 0 ? "Infinity" : "-Infinity";
  }
  char buffer[64];
  const auto [end, status] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return status == std::errc{} ? std::string(buffer, end) : std::to_string(value);
}

}  // namespace nibble
