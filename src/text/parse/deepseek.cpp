// <｜tool▁calls▁begin｜> CALL... <｜tool▁calls▁end｜>, where a CALL is, between its own two
// markers, V3 and R1:  function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n``` V3.1:
// NAME<｜tool▁sep｜>ARGUMENTS
#include "text/parse/markers.h"
#include "text/parse/tagged.h"

namespace nibble::text {
namespace {

constexpr std::string_view kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kCall = "<｜tool▁call▁begin｜>";
constexpr std::string_view kCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kSeparator = "<｜tool▁sep｜>";
constexpr std::string_view kFence = "```";
constexpr std::string_view kJsonFence = "```json";

std::optional<ToolCall> read_call(std::string_view text) {
  const size_t separator = text.find(kSeparator);
  if (separator == std::string_view::npos) {
    return std::nullopt;
  }
  std::string_view name = trimmed(text.substr(0, separator));
  std::string_view arguments = trimmed(text.substr(separator + kSeparator.size()));
  const size_t fence = arguments.find(kJsonFence);
  if (name == "function" && fence != std::string_view::npos && arguments.ends_with(kFence) &&
      arguments.size() >= fence + kJsonFence.size() + kFence.size()) {
    name = trimmed(arguments.substr(0, fence));
    arguments.remove_prefix(fence + kJsonFence.size());
    arguments = trimmed(arguments.substr(0, arguments.size() - kFence.size()));
  }
  const auto value = parse_json_value(arguments);
  if (name.empty() || !value || !value->is_object()) {
    return std::nullopt;
  }
  return ToolCall{std::string(name), json_text(*value)};
}

std::optional<std::vector<ToolCall>> read_calls(std::string_view body) {
  std::vector<ToolCall> calls;
  for (body = trimmed(body); !body.empty(); body = without_leading_space(body)) {
    const size_t end = body.find(kCallEnd);
    if (!body.starts_with(kCall) || end == std::string_view::npos) {
      return std::nullopt;
    }
    auto call = read_call(body.substr(kCall.size(), end - kCall.size()));
    if (!call) {
      return std::nullopt;
    }
    calls.push_back(std::move(*call));
    body.remove_prefix(end + kCallEnd.size());
  }
  if (calls.empty()) {
    return std::nullopt;
  }
  return calls;
}

}  // namespace

std::unique_ptr<ToolCallParser> make_deepseek_parser() {
  return std::make_unique<TaggedParser>(kDeepseekMarker, kCallsEnd, read_calls);
}

}  // namespace nibble::text
