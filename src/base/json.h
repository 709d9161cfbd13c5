// Typed, path-aware readers over Boost.JSON: every error names the path of the value it is about.
// parse_json accepts the literals NaN, Infinity and -Infinity (Python writes them in config.json).
// Boost.JSON itself is used directly for building and printing values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "base/error.h"

namespace nibble {

struct JsonLimits {
  size_t max_bytes = size_t{64} << 20;
  size_t max_depth = 64;
};

// `where` is used in errors ("config.json").
Result<boost::json::value> parse_json(std::string_view text,
                                      std::string_view where,
                                      JsonLimits limits = {});
Result<boost::json::value> parse_json_file(const std::string& path, JsonLimits limits = {});

// A view of an object with its path. get_x: required; find_x: nullopt when absent or null.
// Both fail with the path, the expected and the found kind when the type is wrong. Integers accept
// 2.0 but not 2.5; numbers accept integers; transformers' {"__float__": "Infinity"} is a number.
class JsonObject {
 public:
  JsonObject(const boost::json::object& object, std::string path)
      : object_(&object), path_(std::move(path)) {}
  static Result<JsonObject> from(const boost::json::value& value, std::string path);

  const boost::json::object& raw() const { return *object_; }
  const std::string& path() const { return path_; }
  std::string path_of(std::string_view key) const;
  bool has(std::string_view key) const;                        // present and not null
  const boost::json::value* find(std::string_view key) const;  // nullptr when absent or null

  Result<int64_t> get_int(std::string_view key) const;
  Result<double> get_double(std::string_view key) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string> get_string(std::string_view key) const;
  Result<JsonObject> get_object(std::string_view key) const;

  Result<std::optional<int64_t>> find_int(std::string_view key) const;
  Result<std::optional<double>> find_double(std::string_view key) const;
  Result<std::optional<bool>> find_bool(std::string_view key) const;
  Result<std::optional<std::string>> find_string(std::string_view key) const;
  Result<std::optional<JsonObject>> find_object(std::string_view key) const;
  // An array of integers, or one integer (read as an array of one).
  Result<std::optional<std::vector<int64_t>>> find_int_list(std::string_view key) const;
  // An array of strings, or one string.
  Result<std::optional<std::vector<std::string>>> find_string_list(std::string_view key) const;

 private:
  const boost::json::object* object_;
  std::string path_;
};

// "integer", "string", "object", ... for messages.
std::string_view json_kind_name(const boost::json::value& value);

// A number as people write it (2.5, not 2.5E0); shortest form that reads back to the same value.
std::string format_number(double value);

}  // namespace nibble
