// <tool_call>
// <function=NAME>
// <parameter=P>
// VALUE
// </parameter>
// </function>
// </tool_call>
// One line break after <parameter=P> and one before </parameter> are not part of the value. Values
// are text; the schema of the tool says which of them are JSON.
#include "text/parse/markers.h"
#include "text/parse/tagged.h"

namespace nibble::text {
namespace {

namespace json = boost::json;

constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";

// Takes `prefix` from the front of `text`.
bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) {
    return false;
  }
  text.remove_prefix(prefix.size());
  return true;
}

// What is before `end`, which is taken too.
std::optional<std::string_view> take_until(std::string_view& text, std::string_view end) {
  const size_t at = text.find(end);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  const std::string_view before = text.substr(0, at);
  text.remove_prefix(at + end.size());
  return before;
}

std::string_view without_line_breaks(std::string_view value) {
  if (value.starts_with('\n')) {
    value.remove_prefix(1);
  }
  if (value.ends_with('\n')) {
    value.remove_suffix(1);
  }
  return value;
}

json::value typed(std::string_view value,
                  const ToolSchemas& schemas,
                  std::string_view function,
                  std::string_view parameter) {
  if (!schemas.is_text(function, parameter)) {
    if (auto parsed = parse_json_value(trimmed(value))) {
      return std::move(*parsed);
    }
    // As Python writes them.
    const std::string_view word = trimmed(value);
    if (word == "True" || word == "False") {
      return word == "True";
    }
    if (word == "None") {
      return nullptr;
    }
  }
  return json::value(value);
}

std::optional<std::vector<ToolCall>> read_calls(std::string_view body, const ToolSchemas& schemas) {
  std::vector<ToolCall> calls;
  body = trimmed(body);
  while (take(body, kFunction)) {
    const auto name = take_until(body, ">");
    if (!name || trimmed(*name).empty()) {
      return std::nullopt;
    }
    json::object arguments;
    body = without_leading_space(body);
    while (take(body, kParameter)) {
      const auto parameter = take_until(body, ">");
      const auto value = parameter ? take_until(body, kParameterEnd) : std::nullopt;
      if (!value) {
        return std::nullopt;
      }
      arguments[trimmed(*parameter)] =
          typed(without_line_breaks(*value), schemas, trimmed(*name), trimmed(*parameter));
      body = without_leading_space(body);
    }
    if (!take(body, kFunctionEnd)) {
      return std::nullopt;
    }
    calls.push_back({std::string(trimmed(*name)), json_text(arguments)});
    body = without_leading_space(body);
  }
  if (calls.empty() || !body.empty()) {
    return std::nullopt;
  }
  return calls;
}

}  // namespace

std::unique_ptr<ToolCallParser> make_qwen3_coder_parser(ToolSchemas schemas) {
  return std::make_unique<TaggedParser>(
      kHermesMarker, "</tool_call>", [schemas = std::move(schemas)](std::string_view body) {
        return read_calls(body, schemas);
      });
}

}  // namespace nibble::text
