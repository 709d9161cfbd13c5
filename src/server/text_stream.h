// The text of one generated sequence: decodes tokens, watches for stop strings (also across token
// borders) and holds back what could still become one. All pieces together are the final text, so a
// stream and a whole answer agree. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/stream_decoder.h"

namespace nibble::server {

// Finds stop strings in text that arrives in pieces.
class StopMatcher {
 public:
  // keep_match: the stop string stays in the text (upstream's no_stop_trim).
  StopMatcher(std::vector<std::string> stops, bool keep_match);

  // Appends to `out` the text that is final now. True when a stop string was completed: nothing
  // after it is ever given.
  bool push(std::string_view piece, std::string& out);
  void finish(std::string& out);  // gives what was held back
  const std::string& matched() const { return matched_; }

 private:
  size_t held_suffix() const;  // length of the longest end of held_ that begins a stop string

  std::vector<std::string> stops_;
  bool keep_match_;
  std::string held_;
  std::string matched_;
};

struct TextOptions {
  std::vector<std::string> stop;
  bool no_stop_trim = false;
  bool skip_special_tokens = true;
};

class TextStream {
 public:
  // tokenizer == nullptr: ids only, the text stays empty.
  TextStream(const text::Tokenizer* tokenizer, const TextOptions& options);

  bool push(int32_t token);  // true: this token completed a stop string
  void finish();
  const std::string& text() const { return text_; }  // what is final so far
  bool decodes() const { return decoder_.has_value(); }
  const std::string& matched_stop() const { return matcher_.matched(); }

 private:
  std::optional<text::StreamDecoder> decoder_;
  StopMatcher matcher_;
  std::string text_;
};

}  // namespace nibble::server
