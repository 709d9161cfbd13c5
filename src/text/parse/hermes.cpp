#include "text/parse/markers.h"
#include "text/parse/tool_call.h"

namespace nibble::text {
namespace {

constexpr std::string_view kBegin = "<tool_call>";
constexpr std::string_view kEnd = "</tool_call>";

class HermesParser final : public ToolCallParser {
 public:
  ToolCallParts push(std::string_view text) override {
    ToolCallParts parts;
    pending_ += text;
    while (inside_ ? take_call(parts) : take_content(parts)) {
    }
    return parts;
  }

  ToolCallParts finish() override {
    ToolCallParts parts;
    if (inside_) {
      // The end marker may be missing where generation stopped.
      add(pending_, std::string(kBegin) + pending_, parts);
    } else if (!seen_call_ || trailing_space(pending_) < pending_.size()) {
      parts.content = pending_;
    }
    pending_.clear();
    return parts;
  }

 private:
  // Text before a call; white space next to a call belongs to neither.
  bool take_content(ToolCallParts& parts) {
    const size_t begin = pending_.find(kBegin);
    const std::string_view text = pending_;
    if (begin != std::string::npos) {
      const std::string_view before = text.substr(0, begin);
      parts.content += before.substr(0, begin - trailing_space(before));
      before_call_ = before.substr(begin - trailing_space(before));
      pending_.erase(0, begin + kBegin.size());
      inside_ = true;
      return true;
    }
    const size_t marker = partial_marker(text, kBegin);
    const size_t kept = marker + trailing_space(text.substr(0, text.size() - marker));
    parts.content += text.substr(0, text.size() - kept);
    pending_.erase(0, text.size() - kept);
    return false;
  }

  bool take_call(ToolCallParts& parts) {
    const size_t end = pending_.find(kEnd);
    if (end == std::string::npos) {
      return false;
    }
    const std::string body = pending_.substr(0, end);
    pending_.erase(0, end + kEnd.size());
    inside_ = false;
    add(body, std::string(kBegin) + body + std::string(kEnd), parts);
    return true;
  }

  void add(const std::string& body, const std::string& raw, ToolCallParts& parts) {
    if (auto call = parse_tool_call(body)) {
      parts.calls.push_back(std::move(*call));
      seen_call_ = true;
    } else {
      parts.content += before_call_ + raw;
    }
  }

  std::string pending_;
  std::string before_call_;  // the white space before the marker, given back if it is no call
  bool inside_ = false;
  bool seen_call_ = false;
};

}  // namespace

std::unique_ptr<ToolCallParser> make_hermes_parser() { return std::make_unique<HermesParser>(); }

}  // namespace nibble::text
