#include "text/parse/markers.h"
#include "text/parse/tool_call.h"

namespace nibble::text {
namespace {

constexpr std::string_view kTag = kLlama3Marker;

// The end of the JSON object that starts at text[0] == '{'; npos when it is not complete.
size_t object_end(std::string_view text) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

class Llama3Parser final : public ToolCallParser {
 public:
  ToolCallParts push(std::string_view text) override {
    ToolCallParts parts;
    pending_ += text;
    advance(parts);
    return parts;
  }

  ToolCallParts finish() override {
    ToolCallParts parts;
    const bool only_space = trailing_space(pending_) == pending_.size();
    if (!only_space || !seen_call_) {
      parts.content = pending_;
    }
    pending_.clear();
    return parts;
  }

 private:
  // Calls are at the beginning of the text only; from the first thing that is none, all is content.
  void advance(ToolCallParts& parts) {
    while (!content_) {
      std::string_view text = without_leading_space(pending_);
      if (seen_call_ && (text.starts_with(';') || text.starts_with(','))) {
        text = without_leading_space(text.substr(1));
      }
      if (text.starts_with(kTag)) {
        text = without_leading_space(text.substr(kTag.size()));
      } else if (kTag.starts_with(text)) {
        return;  // nothing, or the beginning of the tag
      }
      if (text.empty()) {
        return;
      }
      if (text[0] != '{') {
        content_ = true;
        break;
      }
      const size_t end = object_end(text);
      if (end == std::string_view::npos) {
        return;
      }
      auto call = parse_tool_call(text.substr(0, end));
      if (!call) {
        content_ = true;
        break;
      }
      parts.calls.push_back(std::move(*call));
      seen_call_ = true;
      pending_ = std::string(text.substr(end));
    }
    if (content_) {
      parts.content += pending_;
      pending_.clear();
    }
  }

  std::string pending_;
  bool content_ = false;
  bool seen_call_ = false;
};

}  // namespace

std::unique_ptr<ToolCallParser> make_llama3_parser() { return std::make_unique<Llama3Parser>(); }

}  // namespace nibble::text
