#include "text/parse/reasoning.h"

#include <algorithm>

#include "text/parse/markers.h"

namespace nibble::text {
ReasoningSplitter::ReasoningSplitter(bool starts_inside)
    : state_(starts_inside ? State::Reasoning : State::Begin) {}

ReasoningParts ReasoningSplitter::push(std::string_view text) {
  ReasoningParts parts;
  pending_ += text;
  advance(false, parts);
  return parts;
}

ReasoningParts ReasoningSplitter::finish() {
  ReasoningParts parts;
  advance(true, parts);
  return parts;
}

void ReasoningSplitter::advance(bool last, ReasoningParts& parts) {
  if (may_begin_) {
    // A model whose prompt ended with <think> may still write it again, once.
    const std::string_view text = without_leading_space(pending_);
    if (text.starts_with(kThinkBegin)) {
      pending_ = std::string(text.substr(kThinkBegin.size()));
      state_ = State::Reasoning;
    } else if (kThinkBegin.starts_with(text) && !last) {
      return;
    } else if (state_ == State::Begin) {
      state_ = State::Content;
    }
    may_begin_ = false;
  }
  if (state_ == State::Reasoning) {
    if (skip_space_) {
      pending_ = std::string(without_leading_space(pending_));
      skip_space_ = pending_.empty();
    }
    const size_t end = pending_.find(kThinkEnd);
    if (end == std::string::npos) {
      const size_t marker = last ? 0 : partial_marker(pending_, kThinkEnd);
      const std::string_view whole = pending_;
      const size_t kept = marker + trailing_space(whole.substr(0, whole.size() - marker));
      parts.reasoning += whole.substr(0, whole.size() - kept);
      pending_.erase(0, whole.size() - kept);
      if (last) {
        pending_.clear();
      }
      return;
    }
    const std::string_view reasoning = std::string_view(pending_).substr(0, end);
    parts.reasoning += reasoning.substr(0, end - trailing_space(reasoning));
    pending_.erase(0, end + kThinkEnd.size());
    state_ = State::AfterReasoning;
  }
  if (state_ == State::AfterReasoning) {
    pending_ = std::string(without_leading_space(pending_));
    if (pending_.empty()) {
      return;
    }
    state_ = State::Content;
  }
  parts.content += pending_;
  pending_.clear();
}

}  // namespace nibble::text
