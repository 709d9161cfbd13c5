// Splits generated text into reasoning and answer: <think> ... </think> answer. Works on text as it
// is generated; a part of a marker is never given out as text. White space at the borders (after
// <think>, around </think>) belongs to neither part. Reasoning that never ends is all reasoning.
// One object a sequence, one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace nibble::text {

constexpr std::string_view kThinkBegin = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

// The dialects by upstream's names, reasoning_list.cpp.
std::span<const std::string_view> reasoning_parser_names();
// Whether the answer to a prompt that ends like this begins inside of the reasoning: as the prompt
// says, else as models of this dialect do.
bool begins_with_reasoning(std::string_view dialect, std::string_view prompt_end);

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
  bool may_begin_ = true;   // <think> may still come
  bool skip_space_ = true;  // at the beginning of the present part
  std::string pending_;
};

}  // namespace nibble::text
