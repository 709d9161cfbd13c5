#include "text/parse/tool_call.h"

#include <algorithm>

#include "base/json.h"
#include "text/template/format.h"
#include "text/template/json_value.h"

namespace nibble::text {

namespace json = boost::json;

std::optional<json::value> parse_json_value(std::string_view text) {
  auto parsed = parse_json(text, "tool call");
  return parsed ? std::optional(std::move(*parsed)) : std::nullopt;
}

std::string json_text(const json::value& value) {
  uint64_t bytes = 0;
  const jinja::Value converted = jinja::from_json(value, bytes);
  jinja::Budget budget(bytes);
  return jinja::to_json(converted, {}, budget);
}

std::optional<ToolCall> parse_tool_call(std::string_view text) {
  const auto parsed = parse_json_value(text);
  if (!parsed || !parsed->is_object()) {
    return std::nullopt;
  }
  const json::object& call = parsed->get_object();
  const json::value* name = call.if_contains("name");
  const json::value* arguments = call.if_contains("arguments");
  if (arguments == nullptr) {
    arguments = call.if_contains("parameters");
  }
  if (name == nullptr || !name->is_string() || arguments == nullptr || !arguments->is_object()) {
    return std::nullopt;
  }
  return ToolCall{std::string(name->get_string()), json_text(*arguments)};
}

namespace {

// The member of an object; null where there is none.
const json::value* member(const json::value* value, std::string_view key) {
  return value != nullptr && value->is_object() ? value->get_object().if_contains(key) : nullptr;
}

bool allows_other_than_text(const json::value& schema) {
  const json::value* type = member(&schema, "type");
  if (type == nullptr) {
    return member(&schema, "anyOf") != nullptr || member(&schema, "oneOf") != nullptr;
  }
  if (type->is_array()) {
    const json::array& types = type->get_array();
    return std::any_of(types.begin(), types.end(), [](const json::value& one) {
      return one.is_string() && one.get_string() != "string";
    });
  }
  return type->is_string() && type->get_string() != "string";
}

}  // namespace

ToolSchemas::ToolSchemas(const json::value& tools) {
  if (!tools.is_array()) {
    return;
  }
  for (const json::value& tool : tools.get_array()) {
    const json::value* function = member(&tool, "function");
    const json::value* name = member(function, "name");
    const json::value* properties = member(member(function, "parameters"), "properties");
    if (name == nullptr || !name->is_string() || properties == nullptr ||
        !properties->is_object()) {
      continue;
    }
    for (const auto& [parameter, schema] : properties->get_object()) {
      if (allows_other_than_text(schema)) {
        typed_[std::string(name->get_string())].insert(std::string(parameter));
      }
    }
  }
}

bool ToolSchemas::is_text(std::string_view function, std::string_view parameter) const {
  const auto found = typed_.find(function);
  return found == typed_.end() || !found->second.contains(parameter);
}

}  // namespace nibble::text
