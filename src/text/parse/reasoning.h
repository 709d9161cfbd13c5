// Splits generated text into reasoning and answer: <think> ... </think> answer. Works on text as it
// is generated; a part of a marker is never given out as text. White space at the borders (after
// <think>, around </think>) belongs to neither part. Reasoning that never ends is all reasoning.
// One object a sequence, one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::text {

struct ReasoningParts {
  std::string reasoning;
  std::string content;
};

class ReasoningSplitter {
 public:
  // starts_inside: the prompt ended with <think>, so the model begins by thinking.
  explicit ReasoningSplitter(bool starts_inside);

  ReasoningParts push(std::string_view text);  // what became final
  ReasoningParts finish();                     // the rest

 private:
  enum class State : uint8_t { Begin, Reasoning, AfterReasoning, Content };
  void advance(bool last, ReasoningParts& parts);

  State state_;
  bool skip_space_ = true;  // at the beginning of the present part
  std::string pending_;
};

}  // namespace nibble::text
