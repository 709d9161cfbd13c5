#include "text/parse/tagged.h"

namespace nibble::text {

std::unique_ptr<ToolCallParser> make_hermes_parser() {
  return std::make_unique<TaggedParser>(
      kHermesMarker,
      "</tool_call>",
      [](std::string_view body) -> std::optional<std::vector<ToolCall>> {
        auto call = parse_tool_call(body);
        if (!call) {
          return std::nullopt;
        }
        return std::vector<ToolCall>{std::move(*call)};
      });
}

}  // namespace nibble::text
