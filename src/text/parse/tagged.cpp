#include "text/parse/tagged.h"

#include <algorithm>
#include <utility>

#include "text/parse/markers.h"

namespace nibble::text {

TaggedParser::TaggedParser(std::string_view begin, std::string_view end, ReadBody read_body)
    : begin_(begin), end_(end), read_body_(std::move(read_body)) {}

ToolCallParts TaggedParser::push(std::string_view text) {
  ToolCallParts parts;
  pending_ += text;
  while (inside_ ? take_calls(parts) : take_content(parts)) {
  }
  return parts;
}

ToolCallParts TaggedParser::finish() {
  ToolCallParts parts;
  if (inside_) {
    add(pending_, "", parts);  // the end marker may be missing where generation stopped
  } else if (!seen_call_ || trailing_space(pending_) < pending_.size()) {
    parts.content = pending_;
  }
  pending_.clear();
  return parts;
}

// Text before a call; white space next to a call belongs to neither.
bool TaggedParser::take_content(ToolCallParts& parts) {
  const std::string_view text = pending_;
  const size_t begin = text.find(begin_);
  if (begin != std::string_view::npos) {
    const std::string_view before = text.substr(0, begin);
    const size_t space = trailing_space(before);
    parts.content += before.substr(0, begin - space);
    before_call_ = before.substr(begin - space);
    pending_.erase(0, begin + begin_.size());
    inside_ = true;
    searched_ = 0;
    return true;
  }
  const size_t marker = partial_marker(text, begin_);
  const size_t kept = marker + trailing_space(text.substr(0, text.size() - marker));
  parts.content += text.substr(0, text.size() - kept);
  pending_.erase(0, text.size() - kept);
  return false;
}

bool TaggedParser::take_calls(ToolCallParts& parts) {
  const size_t end = pending_.find(end_, searched_);
  if (end == std::string::npos) {
    searched_ = pending_.size() - std::min(pending_.size(), end_.size() - 1);
    return false;
  }
  const std::string body = pending_.substr(0, end);
  pending_.erase(0, end + end_.size());
  inside_ = false;
  add(body, end_, parts);
  return true;
}

void TaggedParser::add(std::string_view body, std::string_view raw_end, ToolCallParts& parts) {
  if (auto calls = read_body_(body)) {
    std::move(calls->begin(), calls->end(), std::back_inserter(parts.calls));
    seen_call_ = true;
    return;
  }
  parts.content += before_call_;
  parts.content += begin_;
  parts.content += body;
  parts.content += raw_end;
}

}  // namespace nibble::text
