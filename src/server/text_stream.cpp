#include "server/text_stream.h"

#include <algorithm>

namespace nibble::server {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool keep_match)
    : stops_(std::move(stops)), keep_match_(keep_match) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

bool StopMatcher::push(std::string_view piece, std::string& out) {
  if (!matched_.empty()) {
    return true;
  }
  if (stops_.empty()) {
    out.append(piece);
    return false;
  }
  held_.append(piece);
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at < first || (at == first && at != std::string::npos && stop.size() > matched_.size())) {
      first = at;
      matched_ = stop;
    }
  }
  if (first != std::string::npos) {
    out.append(held_, 0, first + (keep_match_ ? matched_.size() : 0));
    held_.clear();
    return true;
  }
  const size_t keep = held_suffix();
  out.append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

void StopMatcher::finish(std::string& out) {
  out.append(held_);
  held_.clear();
}

size_t StopMatcher::held_suffix() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > longest; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) {
        longest = n;
        break;
      }
    }
  }
  return longest;
}

TextStream::TextStream(const text::Tokenizer* tokenizer, const TextOptions& options)
    : matcher_(options.stop, options.no_stop_trim) {
  if (tokenizer != nullptr) {
    decoder_.emplace(*tokenizer, options.skip_special_tokens);
  }
}

bool TextStream::push(int32_t token) {
  return decoder_ && matcher_.push(decoder_->push(token), text_);
}

void TextStream::finish() {
  if (decoder_ && matcher_.matched().empty() && !matcher_.push(decoder_->finish(), text_)) {
    matcher_.finish(text_);
  }
}

}  // namespace nibble::server
