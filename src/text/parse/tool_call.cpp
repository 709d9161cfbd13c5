#include "text/parse/tool_call.h"

#include "base/json.h"
#include "text/template/format.h"
#include "text/template/json_value.h"

namespace nibble::text {

std::optional<ToolCall> parse_tool_call(std::string_view json) {
  const auto parsed = parse_json(json, "tool call");
  if (!parsed || !parsed->is_object()) {
    return std::nullopt;
  }
  const boost::json::object& call = parsed->get_object();
  const boost::json::value* name = call.if_contains("name");
  const boost::json::value* arguments = call.if_contains("arguments");
  if (arguments == nullptr) {
    arguments = call.if_contains("parameters");
  }
  if (name == nullptr || !name->is_string() || arguments == nullptr || !arguments->is_object()) {
    return std::nullopt;
  }
  uint64_t bytes = 0;
  const jinja::Value value = jinja::from_json(*arguments, bytes);
  jinja::Budget budget(bytes);
  return ToolCall{std::string(name->get_string()), jinja::to_json(value, {}, budget)};
}

}  // namespace nibble::text
