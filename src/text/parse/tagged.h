// The frame that most dialects share: calls stand between two markers, text around them passes
// through. One object a sequence, one thread at a time.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/parse/tool_call.h"

namespace nibble::text {

class TaggedParser final : public ToolCallParser {
 public:
  // The calls between two markers; nullopt: these are none.
  using ReadBody = std::function<std::optional<std::vector<ToolCall>>(std::string_view body)>;

  // Both markers must be views of constants.
  TaggedParser(std::string_view begin, std::string_view end, ReadBody read_body);

  ToolCallParts push(std::string_view text) override;
  ToolCallParts finish() override;

 private:
  bool take_content(ToolCallParts& parts);
  bool take_calls(ToolCallParts& parts);
  void add(std::string_view body, std::string_view raw_end, ToolCallParts& parts);

  std::string_view begin_;
  std::string_view end_;
  ReadBody read_body_;
  std::string pending_;
  size_t searched_ = 0;      // of pending_, inside: no end marker begins before
  std::string before_call_;  // the white space before the marker, given back if it is no call
  bool inside_ = false;
  bool seen_call_ = false;
};

}  // namespace nibble::text
